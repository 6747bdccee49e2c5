// The quantiser: bf16 rows to e4m3 codes with a scale per 128 columns, to the bit as
// numerics/quantize.h. One 128-block per half warp: 8 values per thread, one 16-byte load and one
// 8-byte store.

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/quantize_device.cuh"

namespace rowband::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;
constexpr int kLanes = kDepth / kPerThread;

__global__ void __launch_bounds__(kThreads)
    quantize(const Bf16* x, std::int64_t rows, std::int64_t depth, std::int64_t x_row_stride,
             bool ue8m0, E4m3* codes, float* scales, std::int64_t scale_row,
             std::int64_t scale_block) {
  const std::int64_t blocks = depth / kDepth;
  const std::int64_t index =
      (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  // Whole half warps leave together, so the shuffles below stay whole.
  const bool inside = index < rows * blocks;
  const std::int64_t row = inside ? index / blocks : 0, block = inside ? index % blocks : 0;
  const std::int64_t at = block * kDepth + threadIdx.x % kLanes * kPerThread;
  const Bf16* from = x + row * x_row_stride + at;
  float values[kPerThread];
  float amax = 0.0f;
  if ((reinterpret_cast<std::uintptr_t>(from) & 15) == 0) {
    const uint4 bits = *reinterpret_cast<const uint4*>(from);
    const unsigned pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      values[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xFFFF0000u);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      values[i] = __uint_as_float(static_cast<unsigned>(from[i].bits) << 16);
    }
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const float magnitude = fabsf(values[i]);
    if (magnitude > amax) amax = magnitude;  // false for NaN
  }
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, lane));
  }
  if (!inside) return;
  const float scale = block_scale(amax, ue8m0);
  const Division by(scale);
  std::uint64_t packed = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; i += 2) {
    packed |= static_cast<std::uint64_t>(e4m3_codes(values[i], values[i + 1], by)) << (8 * i);
  }
  *reinterpret_cast<std::uint64_t*>(codes + row * depth + at) = packed;
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
  const std::int64_t threads = rows * (depth / kDepth) * kLanes;
  if (threads == 0) return;
  quantize<<<static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      x, rows, depth, x_row_stride, ue8m0, codes, scales, scale_row, scale_block);
  check(cudaGetLastError(), "launching the quantiser");
}

}  // namespace rowband::cuda
