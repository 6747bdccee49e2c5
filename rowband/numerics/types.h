// The three narrow number formats of the layer, as bit patterns with names.
//
// Conversions are exact to the bit and identical on every engine; sources: OCP 8-bit Floating Point
// Specification (OFP8) 1.0 for e4m3 (the "fn" flavour: no infinities, 0x7F and 0xFF are NaN,
// largest value 448), OCP Microscaling (MX) 1.0 for E8M0 (a biased power of two, 0xFF is NaN).
#pragma once

#include <bit>
#include <cstdint>

namespace rowband {

struct Bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(const Bf16&, const Bf16&) = default;  // bits, not values
};

struct E4m3 {
  std::uint8_t bits = 0;
  friend bool operator==(const E4m3&, const E4m3&) = default;
};

struct E8m0 {
  std::uint8_t bits = 0;
  friend bool operator==(const E8m0&, const E8m0&) = default;
};

static_assert(sizeof(Bf16) == 2 && sizeof(E4m3) == 1 && sizeof(E8m0) == 1);

inline constexpr float kE4m3Max = 448.0f;

// Exact.
inline float to_float(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

// Round to nearest even; overflow gives infinity; NaN stays a (quiet) NaN of the same sign.
inline Bf16 to_bf16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return Bf16{static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};
  }
  bits += 0x7FFFu + ((bits >> 16) & 1u);
  return Bf16{static_cast<std::uint16_t>(bits >> 16)};
}

// Exact.
float to_float(E4m3 value);

// Round to nearest even, saturating at +-448 (infinities too); NaN gives 0x7F or 0xFF by its sign.
E4m3 to_e4m3(float value);

// 2^(bits - 127); bits 0 gives the subnormal 2^-127, bits 255 gives NaN.
float to_float(E8m0 value);

// The smallest power of two that is >= value, by the exponent bits (no logarithm), at most 2^127;
// anything below 2^-126 gives 2^-126, a normal fp32 number. Throws Error(kInvalidArgument) unless
// value is positive and finite.
E8m0 round_up_to_e8m0(float value);

}  // namespace rowband
