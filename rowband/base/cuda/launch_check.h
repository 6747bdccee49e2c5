// CUDA's error codes as this library's errors.
#pragma once

#include <cuda_runtime.h>

#include <string>

namespace rowband::cuda {

// Throws Error(kUnavailable), or Error(kOutOfMemory), with `what` and CUDA's own words, and clears
// CUDA's last error, so that no later launch is taken for the one that failed.
void check(cudaError_t result, const std::string& what);

}  // namespace rowband::cuda
