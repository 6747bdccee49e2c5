// Views of the two fp8 operands of the GEMM. Views own nothing. Layout is stated by strides, in
// elements, and never guessed from a shape that fits two readings.
#pragma once

#include <cstdint>

#include "rowband/numerics/types.h"

namespace rowband {

// real(m, k) = codes[m * row_stride + k] * scales[m * scale_row_stride + (k / 128) * scale_block_stride]
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

}  // namespace rowband
