// The cuda engine: GPU ranks, Hopper (sm_90a). The ranks are threads of one process, on one GPU or
// several, or processes with a GPU each, which needs NCCL. It serves both wires and both
// transports: the fp8 wire with a scale per block, for N that is a multiple of 16; copy_engine
// where each rank has a GPU of its own. What it does not serve it says (Engine::why_not_served).
#pragma once

#include <memory>
#include <string>

#include "rowband/engines/engine.h"

namespace rowband::cuda {

// GPUs that this process sees; 0 without a driver.
int device_count();
// Whether one of them runs these kernels (sm_90).
bool sees_hopper();

// "" or why the kernels do not run on a GPU of this compute capability.
std::string why_not_built_for(const std::string& gpu, int major, int minor);

// Uses options.device and options.device_ranks. A call without a stream goes on the engine's own.
// Throws Error(kUnavailable) without a GPU or driver, with CUDA's reason, and naming the device and
// its compute capability when it is not Hopper.
std::unique_ptr<Engine> make_cuda_engine(const EngineOptions& options);

}  // namespace rowband::cuda
