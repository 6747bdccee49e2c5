// The quantiser's formula on the device, to the bit as numerics/quantize.h.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace rowband::cuda {

// Rounded to nearest even, for 2^-126 <= x <= 2^126: what the compiler makes of __frcp_rn, less the
// way out for other x, whose call costs registers.
__device__ __forceinline__ float reciprocal(float x) {
  float guess;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(guess) : "f"(x));
  return __fmaf_rn(__fmaf_rn(-x, guess, 1.0f), guess, guess);
}

// x / divisor, rounded to nearest even, for bf16 values x. The rounded reciprocal and one
// correction give every quotient exactly (quantize_test.cc tries all 2^30 pairs of mantissas).
// Powers of two change nothing while the correction's bits stay above 2^-149 and the reciprocal is
// normal: outlying divisors are scaled, with x.
class Division {
 public:
  __device__ __forceinline__ explicit Division(float divisor)
      : boost_(divisor < 0x1p-60f   ? 0x1p64f
               : divisor > 0x1p120f ? 0x1p-64f
                                    : 1.0f),
        divisor_(divisor * boost_),
        reciprocal_(reciprocal(divisor_)) {}

  __device__ __forceinline__ float operator()(float x) const {
    x *= boost_;
    const float quotient = __fmul_rn(x, reciprocal_);
    const float left = __fmaf_rn(-quotient, divisor_, x);
    return isnan(left) ? quotient : __fmaf_rn(left, reciprocal_, quotient);  // NaN from infinity
  }

  // The same for finite x and a divisor that needs no scaling.
  __device__ __forceinline__ float of_ordinary(float x) const {
    const float quotient = __fmul_rn(x, reciprocal_);
    // Twice negated, for -0: -0 - 0 is -0, where -0 + 0 is 0.
    return __fmaf_rn(-__fmaf_rn(quotient, divisor_, -x), reciprocal_, quotient);
  }

 private:
  float boost_, divisor_, reciprocal_;
};

// Of a block whose largest magnitude, NaN left out, is `amax`.
__device__ __forceinline__ float block_scale(float amax, bool ue8m0) {
  constexpr float kLargestCode = 448.0f, kLeast = 0x1p-126f;
  if (amax == 0.0f) return 1.0f;
  const float scale = isinf(amax) ? 0x1.fffffep127f : fmaxf(Division(kLargestCode)(amax), kLeast);
  if (!ue8m0) return scale;
  const unsigned up = (__float_as_uint(scale) + 0x007FFFFFu) & 0xFF800000u;
  return __uint_as_float(up < 0x7F000000u ? up : 0x7F000000u);
}

// Whether Division::of_ordinary serves a block with this largest magnitude, NaN included.
__device__ __forceinline__ bool is_ordinary(float amax) {
  return amax == 0.0f || (amax >= 0x1p-40f && amax <= 0x1p100f);
}

// The codes of two values of an ordinary block, the first in the low byte.
__device__ __forceinline__ std::uint32_t ordinary_codes(float first, float second,
                                                        const Division& by) {
  return __nv_cvt_float2_to_fp8x2({by.of_ordinary(first), by.of_ordinary(second)}, __NV_SATFINITE,
                                  __NV_E4M3);
}

// The codes of any two values, the first in the low byte.
__device__ __forceinline__ std::uint32_t e4m3_codes(float first, float second, const Division& by) {
  const std::uint32_t codes =
      __nv_cvt_float2_to_fp8x2({by(first), by(second)}, __NV_SATFINITE, __NV_E4M3);
  // The conversion drops a NaN's sign.
  return codes | (__float_as_uint(first) >> 24 & 0x80u) | (__float_as_uint(second) >> 16 & 0x8000u);
}

// bf16(code * scale) of two codes.
__device__ __forceinline__ std::uint32_t widen_codes(std::uint32_t codes, float scale) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  const float2 values = __half22float2(halves);
  const __nv_bfloat162 pair = __floats2bfloat162_rn(values.x * scale, values.y * scale);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

}  // namespace rowband::cuda
