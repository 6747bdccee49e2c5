#include "rowband/numerics/types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "rowband/base/error.h"
#include "rowband/numerics/numerics_test_util.h"

namespace rowband {
namespace {

using testing::e4m3_by_specification;
using testing::nearest_e4m3;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float float_from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(E4m3, EveryCodeHasTheValueOfTheSpecification) {
  for (int code = 0; code < 256; ++code) {
    const E4m3 value{static_cast<std::uint8_t>(code)};
    const double want = e4m3_by_specification(value.bits);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(to_float(value))) << code;
    } else {
      EXPECT_EQ(to_float(value), want) << code;
    }
    EXPECT_EQ(std::signbit(to_float(value)), code >= 0x80) << code;
  }
}

TEST(E4m3, EveryCodeSurvivesARoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const E4m3 value{static_cast<std::uint8_t>(code)};
    EXPECT_EQ(to_e4m3(to_float(value)).bits, code);
  }
}

TEST(E4m3, EveryBf16RoundsToTheNearestCode) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = to_float(Bf16{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(to_e4m3(value).bits, nearest_e4m3(value).bits) << "bf16 bits " << bits;
  }
}

// bf16 is too coarse to come close to most of the midpoints between codes; fp32 is not.
TEST(E4m3, EveryMidpointAndItsNeighboursRoundToTheNearestCode) {
  for (std::uint8_t code = 0; code < 0x7E; ++code) {
    const float low = to_float(E4m3{code});
    const float high = to_float(E4m3{static_cast<std::uint8_t>(code + 1)});
    const float midpoint = low + (high - low) / 2;
    const std::uint8_t even = code % 2 == 0 ? code : static_cast<std::uint8_t>(code + 1);
    EXPECT_EQ(to_e4m3(midpoint).bits, even);
    EXPECT_EQ(to_e4m3(std::nextafter(midpoint, low)).bits, code);
    EXPECT_EQ(to_e4m3(std::nextafter(midpoint, high)).bits, code + 1);
    EXPECT_EQ(to_e4m3(-midpoint).bits, even | 0x80);
    EXPECT_EQ(to_e4m3(std::nextafter(high, low)).bits, code + 1);
    EXPECT_EQ(to_e4m3(std::nextafter(low, high)).bits, code);
  }
}

TEST(E4m3, SaturatesAndKeepsNan) {
  EXPECT_EQ(to_e4m3(464.0f).bits, 0x7E);  // the midpoint to 480, whose code is NaN
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::max()).bits, 0x7E);
  EXPECT_EQ(to_e4m3(kInfinity).bits, 0x7E);
  EXPECT_EQ(to_e4m3(-kInfinity).bits, 0xFE);
  EXPECT_EQ(to_e4m3(kNan).bits, 0x7F);
  EXPECT_EQ(to_e4m3(-kNan).bits, 0xFF);
  EXPECT_EQ(to_e4m3(float_from_bits(0x7F800001)).bits, 0x7F);  // signalling, smallest payload
  EXPECT_EQ(to_e4m3(-0.0f).bits, 0x80);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::denorm_min()).bits, 0x00);
}

TEST(E4m3, Q11_CodesReadAsE4m3fnNotFnuz) {
  EXPECT_EQ(to_float(E4m3{0x7E}), 448.0f);  // fnuz: 224
  EXPECT_EQ(to_float(E4m3{0x80}), 0.0f);    // fnuz: NaN
  EXPECT_TRUE(std::signbit(to_float(E4m3{0x80})));
  EXPECT_EQ(1.0f + to_float(E4m3{0x80}), 1.0f);
}

TEST(E8m0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(to_float(E8m0{static_cast<std::uint8_t>(code)}), std::ldexp(1.0, code - 127)) << code;
  }
  EXPECT_TRUE(std::isnan(to_float(E8m0{255})));
}

TEST(E8m0, RoundsUpToTheNextPowerOfTwo) {
  for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
    const std::uint32_t up = std::min(exponent + 1, 254u);
    EXPECT_EQ(round_up_to_e8m0(float_from_bits(exponent << 23)).bits, exponent);
    for (const std::uint32_t fraction : {1u, 0x400000u, 0x7FFFFFu}) {
      EXPECT_EQ(round_up_to_e8m0(float_from_bits(exponent << 23 | fraction)).bits, up)
          << "exponent " << exponent << ", fraction " << fraction;
    }
  }
}

TEST(E8m0, SubnormalsBecomeTheSmallestNormal) {
  for (const std::uint32_t bits : {1u, 0x400000u, 0x7FFFFFu}) {
    EXPECT_EQ(round_up_to_e8m0(float_from_bits(bits)).bits, 1);
  }
}

TEST(E8m0, Q05_RoundsUpRightNextToAPowerOfTwo) {
  EXPECT_EQ(round_up_to_e8m0(float_from_bits(0x35800000)).bits, 107);
  EXPECT_EQ(round_up_to_e8m0(float_from_bits(0x35800001)).bits, 108);
  EXPECT_EQ(round_up_to_e8m0(float_from_bits(0x3BFFFFFF)).bits, 120);
  EXPECT_EQ(round_up_to_e8m0(4.0f / 448.0f).bits, 121);
}

TEST(E8m0, RefusesWhatHasNoPowerOfTwoAbove) {
  for (const float value : {0.0f, -0.0f, -1.0f, kInfinity, -kInfinity, kNan, -kNan}) {
    try {
      round_up_to_e8m0(value);
      ADD_FAILURE() << value << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("must be positive and finite"), std::string::npos);
    }
  }
}

TEST(Bf16, EveryPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    const bool signalling = std::isnan(to_float(value)) && (bits & 0x40) == 0;
    EXPECT_EQ(to_bf16(to_float(value)).bits, signalling ? bits | 0x40 : bits);
  }
}

// Between every two neighbours: just above the lower, around the midpoint, just below the upper.
TEST(Bf16, RoundsToTheNearestWithTiesToEven) {
  for (std::uint32_t lower = 0; lower < 0x7F80; ++lower) {
    const std::uint32_t upper = lower + 1;
    const std::uint32_t even = lower % 2 == 0 ? lower : upper;
    const auto round = [&](std::uint32_t low_half) -> std::uint32_t {
      return to_bf16(float_from_bits(lower << 16 | low_half)).bits;
    };
    ASSERT_EQ(round(0x0001), lower);
    ASSERT_EQ(round(0x7FFF), lower);
    ASSERT_EQ(round(0x8000), even);
    ASSERT_EQ(round(0x8001), upper);
    ASSERT_EQ(round(0xFFFF), upper);
    ASSERT_EQ(to_bf16(float_from_bits(0x80000000u | lower << 16 | 0x8001)).bits, 0x8000u | upper);
  }
}

TEST(Bf16, NanNeverBecomesInfinity) {
  EXPECT_EQ(to_bf16(float_from_bits(0x7F800001)).bits, 0x7FC0);
  EXPECT_EQ(to_bf16(float_from_bits(0xFFFFFFFF)).bits, 0xFFFF);
}

TEST(Bf16, N07_ReachesBeyondTheRangeOfFp16) {
  EXPECT_EQ(to_float(to_bf16(70000.0f)), 70144.0f);
  EXPECT_EQ(to_float(to_bf16(-70000.0f)), -70144.0f);
}

}  // namespace
}  // namespace rowband
