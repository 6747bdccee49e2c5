#include "rowband/numerics/float_environment.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <limits>
#include <utility>

#include "rowband/numerics/numerics_test_util.h"

namespace rowband {
namespace {

// Volatile, so that sums and products are made at run time and where they stand.
volatile float one = 1.0f;
volatile float below_half_ulp = 0x0.8p-24f;
volatile float above_half_ulp = 0x1.8p-24f;
volatile float smallest_normal = std::numeric_limits<float>::min();
volatile float half = 0.5f;

enum class Rounding { kNearest, kUpward, kTowardZero };

// By what the arithmetic does: fegetround() may look at another unit's mode.
Rounding rounding_in_effect() {
  const volatile float low = one + below_half_ulp;
  const volatile float high = one + above_half_ulp;
  if (low > 1.0f) return Rounding::kUpward;
  return high > 1.0f ? Rounding::kNearest : Rounding::kTowardZero;
}

class FloatEnvironmentRounding : public ::testing::TestWithParam<std::pair<int, Rounding>> {
 protected:
  ~FloatEnvironmentRounding() override { std::fesetround(FE_TONEAREST); }
};

TEST_P(FloatEnvironmentRounding, IsNearestInsideAndTheCallersAfterwards) {
  const auto [mode, rounding] = GetParam();
  ASSERT_EQ(std::fesetround(mode), 0);
  const Rounding before = rounding_in_effect();
  Rounding inner, outer;
  {
    const ScopedFloatEnvironment ieee;
    {
      const ScopedFloatEnvironment nested;
      inner = rounding_in_effect();
    }
    outer = rounding_in_effect();
  }
  const Rounding after = rounding_in_effect();
  EXPECT_EQ(before, rounding);
  EXPECT_EQ(inner, Rounding::kNearest);
  EXPECT_EQ(outer, Rounding::kNearest);
  EXPECT_EQ(after, rounding);
}

INSTANTIATE_TEST_SUITE_P(Modes, FloatEnvironmentRounding,
                         ::testing::Values(std::pair{FE_TONEAREST, Rounding::kNearest},
                                           std::pair{FE_UPWARD, Rounding::kUpward},
                                           std::pair{FE_TOWARDZERO, Rounding::kTowardZero}));

#ifdef ROWBAND_CAN_FLUSH_DENORMALS
TEST(FloatEnvironment, KeepsSubnormalsAndRestoresFlushing) {
  volatile float result_before = 0.0f;
  volatile float result_inside = 0.0f;
  volatile float operand_inside = 0.0f;
  volatile float result_after = 0.0f;
  {
    const testing::ScopedHostileFloatEnvironment hostile;
    result_before = smallest_normal * half;
    {
      const ScopedFloatEnvironment ieee;
      result_inside = smallest_normal * half;
      operand_inside = result_inside + result_inside;
    }
    result_after = smallest_normal * half;
  }
  EXPECT_EQ(result_before, 0.0f)
      << "the hostile environment does not flush: the test tests nothing";
  EXPECT_EQ(result_inside, 0x1p-127f);
  EXPECT_EQ(operand_inside, 0x1p-126f);
  EXPECT_EQ(result_after, 0.0f);
}
#endif

}  // namespace
}  // namespace rowband
