// Descriptors of row-major matrices for the bulk tensor copies: boxes of 128-byte rows, 128-byte
// swizzle.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

namespace rowband::cuda {

// "" when the address and the rows' distance in bytes are multiples of 16, else both in words.
std::string why_no_map(const void* address, std::int64_t row_bytes);

// `box_rows` rows of 128 bytes. `row_stride` in elements. Throw Error(kInvalidArgument) with
// why_no_map.
CUtensorMap map_e4m3(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows);
CUtensorMap map_bf16(const void* address, std::int64_t rows, std::int64_t cols,
                     std::int64_t row_stride, int box_rows);

}  // namespace rowband::cuda
