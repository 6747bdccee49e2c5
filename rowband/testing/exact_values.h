// Small integers that depend on rank, row and call, for operands whose products are exact; for the
// host and, under nvcc, for the device.
#pragma once

#include <cstdint>

#include "rowband/plan/tile_order.h"

namespace rowband {

// x is 1, 2 or 3 along a row, w is 1 or 2 along a column: exact in bf16 up to W = 40 and K = 384.
ROWBAND_HOST_DEVICE inline int exact_x(int rank, std::int64_t row, std::int64_t call) {
  std::uint64_t h = static_cast<std::uint64_t>(row * 1000003 + rank * 7919 + call * 104729 + 12345);
  h = (h ^ (h >> 13)) * 0x9E3779B97F4A7C15u;
  return 1 + static_cast<int>((h >> 40) % 3);
}
ROWBAND_HOST_DEVICE inline int exact_w(std::int64_t col) {
  return 1 + static_cast<int>(col % 3 == 1);
}

}  // namespace rowband
