// Descriptors of row-major matrices for the bulk tensor copies: boxes of 128-byte rows, 128-byte
// swizzle.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace rowband::cuda {

// `box_rows` rows of 128 bytes. `row_stride` in elements; the address and the stride in bytes must
// be multiples of 16, else Error(kInvalidArgument) naming them.
CUtensorMap map_e4m3(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows);
CUtensorMap map_bf16(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows);

}  // namespace rowband::cuda
