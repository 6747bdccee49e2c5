// A launch that does nothing, for what a stream's first launch settles.
#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/kernels.h"

namespace rowband::cuda {
namespace {

__global__ void nothing() {}

}  // namespace

void launch_nothing(cudaStream_t stream) {
  nothing<<<1, 1, 0, stream>>>();
  check(cudaGetLastError(), "launching nothing");
}

}  // namespace rowband::cuda
