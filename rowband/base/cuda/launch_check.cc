#include "rowband/base/cuda/launch_check.h"

#include "rowband/base/fail.h"

namespace rowband::cuda {

void check(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();
  fail(result == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable,
       "{}: {} ({})", what, cudaGetErrorString(result), cudaGetErrorName(result));
}

}  // namespace rowband::cuda
