// The quantiser: bf16 rows to e4m3 codes with a scale per 128 columns, to the bit as
// numerics/quantize.h. One 128-block per eight threads: 16 values each, two 16-byte loads and one
// 16-byte store.

#include <algorithm>
#include <cstdint>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/bf16_device.cuh"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"
#include "rowband/engines/cuda/quantize_device.cuh"

namespace rowband::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;
constexpr int kLanes = kDepth / kPerThread;

// The pairs' codes, in order.
template <bool ordinary>
__device__ uint4 codes_of(const std::uint32_t (&pairs)[kPerThread / 2], const Division& by) {
  std::uint32_t codes[kPerThread / 4];
#pragma unroll
  for (int i = 0; i < kPerThread / 4; ++i) {
    codes[i] = 0;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 two = widened(pairs[2 * i + j]);
      codes[i] |= (ordinary ? ordinary_codes(two.x, two.y, by) : e4m3_codes(two.x, two.y, by))
                  << (16 * j);
    }
  }
  return {codes[0], codes[1], codes[2], codes[3]};
}

__global__ void __launch_bounds__(kThreads)
    quantize(const Bf16* x, std::uint32_t rows, std::uint32_t blocks, std::int64_t x_row_stride,
             bool ue8m0, E4m3* codes, float* scales, std::int64_t scale_row,
             std::int64_t scale_block) {
  const std::uint32_t index = (blockIdx.x * kThreads + threadIdx.x) / kLanes;
  // Whole octets of threads leave together, so the shuffles below stay whole.
  const bool inside = index < rows * blocks;
  const std::uint32_t row = inside ? index / blocks : 0, block = inside ? index % blocks : 0;
  const std::uint32_t at = block * kDepth + threadIdx.x % kLanes * kPerThread;
  const Bf16* from = x + row * x_row_stride + at;
  std::uint32_t pairs[kPerThread / 2];
  if ((reinterpret_cast<std::uintptr_t>(from) & 15) == 0) {
    const uint4 left = reinterpret_cast<const uint4*>(from)[0];
    const uint4 right = reinterpret_cast<const uint4*>(from)[1];
    pairs[0] = left.x, pairs[1] = left.y, pairs[2] = left.z, pairs[3] = left.w;
    pairs[4] = right.x, pairs[5] = right.y, pairs[6] = right.z, pairs[7] = right.w;
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread / 2; ++i) {
      pairs[i] = from[2 * i].bits | static_cast<std::uint32_t>(from[2 * i + 1].bits) << 16;
    }
  }
  float amax = 0.0f, amax_or_nan = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerThread / 2; ++i) {
    const float2 two = widened(pairs[i]);
    amax = fmaxf(fmaxf(amax, fabsf(two.x)), fabsf(two.y));
    amax_or_nan = ptx::max_or_nan(ptx::max_or_nan(amax_or_nan, fabsf(two.x)), fabsf(two.y));
  }
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lane));
  }
  const bool ordinary = __all_sync(0xFFFFFFFFu, is_ordinary(amax) && !isnan(amax_or_nan));
  if (!inside) return;
  const float scale = block_scale(amax, ue8m0);
  const Division by(scale);
  *reinterpret_cast<uint4*>(codes + static_cast<std::int64_t>(row) * blocks * kDepth + at) =
      ordinary ? codes_of<true>(pairs, by) : codes_of<false>(pairs, by);
  if (threadIdx.x % kLanes == 0) scales[row * scale_row + block * scale_block] = scale;
}

}  // namespace

void load_quantize_kernel() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, quantize), "loading the quantiser");
}

void launch_quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                     std::int64_t x_row_stride, bool ue8m0, E4m3* codes, float* scales,
                     std::int64_t scale_row, std::int64_t scale_block, cudaStream_t stream) {
  const std::int64_t blocks = depth / kDepth;
  const std::int64_t most_rows = std::max<std::int64_t>(INT32_MAX / kLanes / blocks, 1);
  for (std::int64_t row = 0; row < rows; row += most_rows) {
    const std::int64_t count = std::min(rows - row, most_rows), threads = count * blocks * kLanes;
    quantize<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
        x + row * x_row_stride, static_cast<std::uint32_t>(count),
        static_cast<std::uint32_t>(blocks), x_row_stride, ue8m0, codes + row * depth,
        scales + row * scale_row, scale_row, scale_block);
    check(cudaGetLastError(), "launching the quantiser");
  }
}

}  // namespace rowband::cuda
