// The bias of the base path, added to the sum over the ranks: fp32 adds, rounded to bf16. One
// 16-byte load and store of `out` per thread; cols is a multiple of 8, so a vector never crosses a
// row. A bias may lie at any even address.
#include <cuda_bf16.h>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/kernels.h"

namespace rowband::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;

union Vector {
  uint4 bits;
  __nv_bfloat16 values[kPerThread];
};

__device__ Vector load(const __nv_bfloat16* from) {
  Vector loaded{};
  if (reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) == 0) {
    loaded.bits = *reinterpret_cast<const uint4*>(from);
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) loaded.values[i] = from[i];
  }
  return loaded;
}

__global__ void __launch_bounds__(kThreads)
    add_bias(uint4* out, std::int64_t vectors, std::int64_t per_row, const __nv_bfloat16* bias) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= vectors) return;
  Vector sum{out[at]};
  const Vector addend = load(bias + at % per_row * kPerThread);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    sum.values[i] = __float2bfloat16_rn(
        __fadd_rn(__bfloat162float(sum.values[i]), __bfloat162float(addend.values[i])));
  }
  out[at] = sum.bits;
}

}  // namespace

void load_bias_kernel() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, add_bias), "loading the bias kernel");
}

void launch_add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                     cudaStream_t stream) {
  const std::int64_t vectors = rows * cols / kPerThread;
  if (vectors == 0) return;
  add_bias<<<static_cast<unsigned>((vectors + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      reinterpret_cast<uint4*>(out), vectors, cols / kPerThread,
      reinterpret_cast<const __nv_bfloat16*>(bias));
  check(cudaGetLastError(), "launching the bias kernel");
}

}  // namespace rowband::cuda
