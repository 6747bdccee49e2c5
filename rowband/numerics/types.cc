#include "rowband/numerics/types.h"

#include <array>

#include "rowband/base/fail.h"
#include "rowband/numerics/strict_float.h"

namespace rowband {
namespace {

constexpr std::uint32_t kFloatSign = 0x80000000u;
constexpr std::uint32_t kFloatInfinity = 0x7F800000u;
constexpr std::uint32_t kFloatQuietNan = 0x7FC00000u;
constexpr std::uint32_t kFloatHiddenBit = 0x00800000u;
constexpr std::uint32_t kFloatFraction = kFloatHiddenBit - 1;
constexpr int kFloatFractionBits = 23;
constexpr int kFloatBias = 127;

constexpr int kE4m3FractionBits = 3;
constexpr int kE4m3Bias = 7;
constexpr std::uint32_t kE4m3Nan = 0x7F;
constexpr std::uint32_t kE4m3Largest = 0x7E;
constexpr float kE4m3SmallestNormal = 0x1p-6f;
constexpr float kE4m3SubnormalStep = 0x1p-9f;

constexpr std::uint32_t kE8m0Nan = 0xFF;
constexpr std::uint32_t kE8m0Largest = 0xFE;  // 2^127

constexpr float decode_e4m3(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & 0x7Fu;
  const std::uint32_t sign = (bits & 0x80u) << 24;
  if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | kFloatQuietNan);
  if (magnitude < (1u << kE4m3FractionBits)) {
    const float subnormal = static_cast<float>(magnitude) * kE4m3SubnormalStep;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
  }
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(kFloatBias - kE4m3Bias)
                                    << kFloatFractionBits;
  return std::bit_cast<float>(sign |
                              ((magnitude << (kFloatFractionBits - kE4m3FractionBits)) + kRebias));
}

constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = decode_e4m3(bits);
  return values;
}();

// value / 2^shift, rounded to nearest even; shift >= 1.
constexpr std::uint32_t shift_right_to_nearest_even(std::uint32_t value, int shift) {
  const std::uint32_t just_below_half = (1u << (shift - 1)) - 1;
  const std::uint32_t odd = (value >> shift) & 1u;
  return (value + just_below_half + odd) >> shift;
}

// Magnitudes in [2^-6, 448): drop 20 fraction bits; a carry runs into the exponent, as it should.
constexpr std::uint32_t encode_e4m3_normal(std::uint32_t magnitude) {
  constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(kFloatBias - kE4m3Bias)
                                    << kE4m3FractionBits;
  return shift_right_to_nearest_even(magnitude, kFloatFractionBits - kE4m3FractionBits) - kRebias;
}

// Magnitudes below 2^-6, as a count of 2^-9 steps; 8 steps are the code of 2^-6.
constexpr std::uint32_t encode_e4m3_subnormal(std::uint32_t magnitude) {
  // magnitude = significand * 2^(exponent - 150), hence steps = significand / 2^(141 - exponent).
  const int shift = 141 - static_cast<int>(magnitude >> kFloatFractionBits);
  if (shift > kFloatFractionBits + 1) return 0;  // less than half a step
  return shift_right_to_nearest_even((magnitude & kFloatFraction) | kFloatHiddenBit, shift);
}

}  // namespace

float to_float(E4m3 value) { return kE4m3Values[value.bits]; }

E4m3 to_e4m3(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & ~kFloatSign;
  std::uint32_t code;
  if (magnitude > kFloatInfinity) {
    code = kE4m3Nan;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    code = kE4m3Largest;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3SmallestNormal)) {
    code = encode_e4m3_normal(magnitude);
  } else {
    code = encode_e4m3_subnormal(magnitude);
  }
  return E4m3{static_cast<std::uint8_t>((bits >> 31 << 7) | code)};
}

float to_float(E8m0 value) {
  if (value.bits == kE8m0Nan) return std::bit_cast<float>(kFloatQuietNan);
  if (value.bits == 0) return 0x1p-127f;
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << kFloatFractionBits);
}

E8m0 round_up_to_e8m0(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if (bits == 0 || bits >= kFloatInfinity) {  // negative numbers have the topmost bit set
    fail(ErrorCode::kInvalidArgument,
         "cannot round {} up to a power of two: the value must be positive and finite", value);
  }
  std::uint32_t exponent = bits >> kFloatFractionBits;
  if (exponent == 0) return E8m0{1};
  if ((bits & kFloatFraction) != 0 && exponent < kE8m0Largest) ++exponent;
  return E8m0{static_cast<std::uint8_t>(exponent)};
}

}  // namespace rowband
