// Pairs of bf16 values in a word, the first in its lower half.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace rowband::cuda {

__device__ __forceinline__ float2 widened(std::uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000u)};
}

// Each sum rounded once to bf16, which equals rounding it to fp32 and then to bf16: where fp32 has
// not all of its bits, one term is less than 2^-7 of the other's last place, and neither rounding
// moves the other. A test tries all pairs.
__device__ __forceinline__ std::uint32_t sum_of_two(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 sum = __hadd2(reinterpret_cast<const __nv_bfloat162&>(a),
                                     reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(sum);
}

}  // namespace rowband::cuda
