// Views of the two fp8 operands of the GEMM. Views own nothing. Layout is stated by strides, in
// elements, and never guessed from a shape that fits two readings.
#pragma once

#include <cstdint>
#include <string>

#include "rowband/numerics/types.h"

namespace rowband {

// N is a multiple of this, so that a bf16 row of the output is a multiple of 16 bytes.
inline constexpr std::int64_t kColsMultiple = 8;

// real(m, k) = codes[m * row_stride + k]
//            * scales[m * scale_row_stride + (k / 128) * scale_block_stride]
struct ActivationView {
  const E4m3* codes = nullptr;
  std::int64_t rows = 0;   // M, >= 0
  std::int64_t depth = 0;  // K of this rank, a multiple of 128
  std::int64_t row_stride = 0;
  const float* scales = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_block_stride = 0;
};

// real(n, k) = codes[n * row_stride + k]
//            * scales[(n / 128) * scale_row_stride + (k / 128) * scale_block_stride]
struct WeightView {
  const E4m3* codes = nullptr;
  std::int64_t cols = 0;   // N, a multiple of 8
  std::int64_t depth = 0;  // K of this rank, a multiple of 128
  std::int64_t row_stride = 0;
  const float* scales = nullptr;
  std::int64_t scale_row_stride = 0;
  std::int64_t scale_block_stride = 0;
};

// "" for a view that can be multiplied, else the first thing that is wrong with it and what would
// be right. Scales must lie row-major or block-major and not overlap. Of a view without rows only
// the depth counts. Reads no memory behind the pointers.
std::string why_not_valid(const ActivationView& x);
std::string why_not_valid(const WeightView& w);

// "" when every scale is finite and positive, else the index [row or row block, K block] of the
// first that is not, and its value: scales that were never loaded, say. Reads all scales; the view
// must be valid and in host memory.
std::string why_scales_not_valid(const ActivationView& x);
std::string why_scales_not_valid(const WeightView& w);

}  // namespace rowband
