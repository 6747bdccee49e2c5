// What the tests of this room share. Not installed.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "rowband/numerics/types.h"

namespace rowband::testing {

#if defined(__SSE2__)
#define ROWBAND_CAN_FLUSH_DENORMALS 1

// The modes that fast servers set, and a rounding mode nobody should: flush to zero, denormals are
// zero, round towards zero.
class ScopedHostileFloatEnvironment {
 public:
  ScopedHostileFloatEnvironment() : saved_mxcsr_(_mm_getcsr()) {
    _mm_setcsr(saved_mxcsr_ | kFlushToZero | kDenormalsAreZero | kRoundTowardsZero);
  }
  ~ScopedHostileFloatEnvironment() { _mm_setcsr(saved_mxcsr_); }
  ScopedHostileFloatEnvironment(const ScopedHostileFloatEnvironment&) = delete;
  ScopedHostileFloatEnvironment& operator=(const ScopedHostileFloatEnvironment&) = delete;

 private:
  static constexpr unsigned int kDenormalsAreZero = 0x0040;
  static constexpr unsigned int kRoundTowardsZero = 0x6000;
  static constexpr unsigned int kFlushToZero = 0x8000;
  unsigned int saved_mxcsr_;
};
#endif

// The value of an e4m3 code as the OFP8 specification writes it, in double; NaN for S.1111.111.
inline double e4m3_by_specification(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = code & 7;
  const double sign = (code & 0x80) != 0 ? -1.0 : 1.0;
  if (exponent == 15 && fraction == 7) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(fraction / 8.0, -6);
  return sign * std::ldexp(1.0 + fraction / 8.0, exponent - 7);
}

// The nearest of the finite codes by trying them all: a tie goes to the even code, a value beyond
// the largest code to the largest code. Shares nothing with to_e4m3().
inline E4m3 nearest_e4m3(double value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return E4m3{static_cast<std::uint8_t>(sign | 0x7F)};
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return E4m3{static_cast<std::uint8_t>(sign | 0x7E)};
  std::uint8_t best = 0;
  for (std::uint8_t code = 1; code < 0x7F; ++code) {
    const double gain = std::fabs(e4m3_by_specification(best) - magnitude) -
                        std::fabs(e4m3_by_specification(code) - magnitude);
    if (gain > 0.0 || (gain == 0.0 && code % 2 == 0)) best = code;
  }
  return E4m3{static_cast<std::uint8_t>(sign | best)};
}

}  // namespace rowband::testing
