#include "rowband/numerics/float_environment.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#else
#include <cfenv>

#include "rowband/base/fail.h"
#endif

namespace rowband {

#if defined(__SSE2__)

namespace {

// Intel SDM volume 1, 10.2.3 "MXCSR Control and Status Register".
constexpr unsigned int kDenormalsAreZero = 1u << 6;
constexpr unsigned int kRoundingControl = 3u << 13;  // 0 is nearest even
constexpr unsigned int kFlushToZero = 1u << 15;

}  // namespace

ScopedFloatEnvironment::ScopedFloatEnvironment() : saved_mxcsr_(_mm_getcsr()) {
  _mm_setcsr(saved_mxcsr_ & ~(kDenormalsAreZero | kRoundingControl | kFlushToZero));
}

ScopedFloatEnvironment::~ScopedFloatEnvironment() { _mm_setcsr(saved_mxcsr_); }

#else

ScopedFloatEnvironment::ScopedFloatEnvironment() : saved_rounding_(std::fegetround()) {
  if (std::fesetround(FE_TONEAREST) != 0) {
    fail(ErrorCode::kUnavailable,
         "this machine refuses the rounding mode FE_TONEAREST (it rounds by mode {}); fp8 codes "
         "need "
         "rounding to nearest even",
         saved_rounding_);
  }
}

ScopedFloatEnvironment::~ScopedFloatEnvironment() { std::fesetround(saved_rounding_); }

#endif

}  // namespace rowband
