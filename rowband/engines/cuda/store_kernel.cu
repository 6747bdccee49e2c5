#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/store_kernel.h"

namespace rowband::cuda {
namespace {

constexpr int kThreads = 512;

__global__ void __launch_bounds__(kThreads)
    store(uint4* to, const uint4* from, std::size_t vectors) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors;
       i += step) {
    to[i] = from[i];
  }
}

}  // namespace

void load_store_kernel() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, store), "loading the store kernel");
}

void launch_stores(void* to, const void* from, std::size_t vectors, int blocks,
                   cudaStream_t stream) {
  store<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<uint4*>(to), static_cast<const uint4*>(from), vectors);
  check(cudaGetLastError(), "launching stores to a peer");
}

}  // namespace rowband::cuda
