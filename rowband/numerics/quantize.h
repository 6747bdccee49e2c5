// The one quantiser formula, in scalar code that reads like its definition. Engines have fast
// versions; tests hold them to this one bit for bit.
//
//   scale = amax / 448           amax over the block, NaN left out
//   code  = e4m3(x / scale)      true division, nearest even, saturating at 448, NaN stays NaN
//
// The scale is never zero, subnormal or infinite: an all-zero block (or one that holds nothing but
// NaN) gets 1, anything below 2^-126 is raised to 2^-126, an infinite one is lowered to the largest
// finite float. So an infinite element saturates and its neighbours are divided by that scale. With
// power-of-two scales the scale is rounded up to a power of two (at most 2^127) first and the codes
// are made with the rounded one. A NaN's code has the NaN's sign.
//
// The bits do not depend on the rounding mode or the flush-to-zero mode of the calling thread.
// Every function throws Error(kInvalidArgument) on an argument outside its contract.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "rowband/numerics/types.h"

namespace rowband {

// Columns of an activation row, and rows and columns of a weight block, that share one scale.
inline constexpr std::int64_t kScaleBlock = 128;

enum class ScaleFormat {
  kFp32,   // amax / 448 as it is
  kUe8m0,  // rounded up to a power of two
};

// Blocks of 128 needed for `n` elements; the last one may be short.
constexpr std::int64_t scale_blocks(std::int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; }

// The scale of a block whose largest magnitude (NaN left out) is `amax` >= 0.
float block_scale(float amax, ScaleFormat format);

// The formula of block_scale, unchecked and inline, for loops that run under
// ScopedFloatEnvironment.
inline float block_scale_in_ieee(float amax, ScaleFormat format) {
  if (amax == 0.0f) return 1.0f;
  const float scale = std::clamp(amax / kE4m3Max, std::numeric_limits<float>::min(),
                                 std::numeric_limits<float>::max());
  if (format == ScaleFormat::kFp32) return scale;
  // A normal number's exponent, one more if it has a fraction: round_up_to_e8m0 without its checks.
  constexpr std::uint32_t kFraction = 0x007FFFFF, kLargest = 0x7F000000;
  const std::uint32_t up = (std::bit_cast<std::uint32_t>(scale) + kFraction) & ~kFraction;
  return std::bit_cast<float>(std::min(up, kLargest));
}

// One code under one scale, which is normal and > 0.
E4m3 quantize(float x, float scale);

// Activations, 1x128 blocks. x is [rows, depth] bf16 with `x_row_stride` elements between rows;
// codes are [rows, depth] with `codes_row_stride`; scales are [rows, scale_blocks(depth)] dense,
// fp32 (powers of two under kUe8m0). Any depth >= 1: the last block may be short.
void quantize_activations(const Bf16* x, std::int64_t rows, std::int64_t depth,
                          std::int64_t x_row_stride, ScaleFormat format, E4m3* codes,
                          std::int64_t codes_row_stride, float* scales);

// Weights, 128x128 blocks. w is [cols, depth] fp32 with `w_row_stride`; codes [cols, depth] dense;
// scales [scale_blocks(cols), scale_blocks(depth)] dense.
void quantize_weights(const float* w, std::int64_t cols, std::int64_t depth,
                      std::int64_t w_row_stride, ScaleFormat format, E4m3* codes, float* scales);

}  // namespace rowband
