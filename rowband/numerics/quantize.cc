#include "rowband/numerics/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "rowband/base/fail.h"
#include "rowband/numerics/float_environment.h"
#include "rowband/numerics/strict_float.h"

namespace rowband {
namespace {

float to_float(float value) { return value; }

// The formula proper; the caller has set the float environment.
E4m3 code_of(float x, float scale) {
  // Not left to the division: the sign of a NaN that comes out of arithmetic differs by machine.
  if (std::isnan(x)) return to_e4m3(x);
  return to_e4m3(x / scale);
}

// The largest magnitude in a [rows, depth] block, NaN left out.
template <typename T>
float largest_magnitude(const T* block, std::int64_t rows, std::int64_t depth,
                        std::int64_t row_stride) {
  float amax = 0.0f;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < depth; ++k) {
      const float magnitude = std::fabs(to_float(block[row * row_stride + k]));
      if (magnitude > amax) amax = magnitude;  // false for NaN
    }
  }
  return amax;
}

// One [rows, depth] block under one scale, which is returned.
template <typename T>
float quantize_block(const T* block, std::int64_t rows, std::int64_t depth, std::int64_t row_stride,
                     ScaleFormat format, E4m3* codes, std::int64_t codes_row_stride) {
  const float scale =
      block_scale_in_ieee(largest_magnitude(block, rows, depth, row_stride), format);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < depth; ++k) {
      codes[row * codes_row_stride + k] = code_of(to_float(block[row * row_stride + k]), scale);
    }
  }
  return scale;
}

// Blocks of [block_rows, 128]; scales are dense, one row of them per row of blocks.
template <typename T>
void quantize_matrix(const T* x, std::int64_t rows, std::int64_t depth, std::int64_t x_row_stride,
                     std::int64_t block_rows, ScaleFormat format, E4m3* codes,
                     std::int64_t codes_row_stride, float* scales) {
  const ScopedFloatEnvironment ieee;
  for (std::int64_t row = 0; row < rows; row += block_rows) {
    for (std::int64_t k = 0; k < depth; k += kScaleBlock) {
      *scales++ = quantize_block(x + row * x_row_stride + k, std::min(block_rows, rows - row),
                                 std::min(kScaleBlock, depth - k), x_row_stride, format,
                                 codes + row * codes_row_stride + k, codes_row_stride);
    }
  }
}

void check_stride(const char* name, std::int64_t stride, std::int64_t depth) {
  if (stride < depth) {
    fail(ErrorCode::kInvalidArgument, "{} is {}, must be at least the depth, {}", name, stride,
         depth);
  }
}

void check_shape(const char* rows_name, std::int64_t rows, std::int64_t depth) {
  if (rows < 0) fail(ErrorCode::kInvalidArgument, "{} is {}, must be >= 0", rows_name, rows);
  if (depth < 1) fail(ErrorCode::kInvalidArgument, "depth is {}, must be >= 1", depth);
}

void check_pointer(const char* name, const void* pointer, std::int64_t rows) {
  if (pointer == nullptr && rows > 0) {
    fail(ErrorCode::kInvalidArgument, "{} is null, must point to {} rows", name, rows);
  }
}

}  // namespace

float block_scale(float amax, ScaleFormat format) {
  const ScopedFloatEnvironment ieee;
  const volatile float amax_in_scope = amax;
  if (!(amax_in_scope >= 0.0f)) {
    fail(ErrorCode::kInvalidArgument, "amax is {}, must be >= 0: the largest magnitude of a block",
         amax);
  }
  const volatile float scale = block_scale_in_ieee(amax_in_scope, format);
  return scale;
}

E4m3 quantize(float x, float scale) {
  if (!std::isnormal(scale) || std::signbit(scale)) {
    fail(ErrorCode::kInvalidArgument, "scale is {}, must be a normal number > 0", scale);
  }
  const ScopedFloatEnvironment ieee;
  const volatile float x_in_scope = x;
  const volatile std::uint8_t bits = code_of(x_in_scope, scale).bits;
  return E4m3{bits};
}

void quantize_activations(const Bf16* x, std::int64_t rows, std::int64_t depth,
                          std::int64_t x_row_stride, ScaleFormat format, E4m3* codes,
                          std::int64_t codes_row_stride, float* scales) {
  check_shape("rows", rows, depth);
  check_stride("x_row_stride", x_row_stride, depth);
  check_stride("codes_row_stride", codes_row_stride, depth);
  check_pointer("x", x, rows);
  check_pointer("codes", codes, rows);
  check_pointer("scales", scales, rows);
  quantize_matrix(x, rows, depth, x_row_stride, /*block_rows=*/1, format, codes, codes_row_stride,
                  scales);
}

void quantize_weights(const float* w, std::int64_t cols, std::int64_t depth,
                      std::int64_t w_row_stride, ScaleFormat format, E4m3* codes, float* scales) {
  check_shape("cols", cols, depth);
  check_stride("w_row_stride", w_row_stride, depth);
  check_pointer("w", w, cols);
  check_pointer("codes", codes, cols);
  check_pointer("scales", scales, cols);
  quantize_matrix(w, cols, depth, w_row_stride, /*block_rows=*/kScaleBlock, format, codes,
                  /*codes_row_stride=*/depth, scales);
}

}  // namespace rowband
