// Values that depend on rank, row and call, for operands whose products are exact; for the host
// and, under nvcc, for the device.
#pragma once

#include <cstdint>

#include "rowband/plan/tile_order.h"

namespace rowband {

// x is 1, 2 or 3 along a row, times a power of two that is the same on all ranks for 16 rows, since
// an engine may tell of their exponents apart from their values; w is 1 or 2 along a column. Exact
// in bf16 up to W = 40 and K = 384.
ROWBAND_HOST_DEVICE inline std::uint64_t exact_hash(std::uint64_t h) {
  h = (h ^ (h >> 13)) * 0x9E3779B97F4A7C15u;
  return h >> 40;
}
ROWBAND_HOST_DEVICE inline int exact_digit(int rank, std::int64_t row, std::int64_t call) {
  const std::int64_t seed = row * 1000003 + rank * 7919 + call * 104729 + 12345;
  return 1 + static_cast<int>(exact_hash(static_cast<std::uint64_t>(seed)) % 3);
}
ROWBAND_HOST_DEVICE inline int exact_exponent(std::int64_t row, std::int64_t call) {
  const std::int64_t seed = row / 16 * 1000003 + call * 104729 + 54321;
  return static_cast<int>(exact_hash(static_cast<std::uint64_t>(seed)) % 8) - 4;
}
ROWBAND_HOST_DEVICE inline float exact_x(int rank, std::int64_t row, std::int64_t call) {
  const auto power = static_cast<float>(1 << (exact_exponent(row, call) + 4));
  return static_cast<float>(exact_digit(rank, row, call)) * power / 16;
}
ROWBAND_HOST_DEVICE inline int exact_w(std::int64_t col) {
  return 1 + static_cast<int>(col % 3 == 1);
}

}  // namespace rowband
