// How fast bytes move between two GPUs, both directions at once.
#pragma once

#include <cstddef>

#include "rowband/base/deadline.h"

namespace rowband::cuda {

// GB/s (1e9 bytes) of each direction, the slower one's. `bytes` per direction and copy, at least 1.
// Throws Error(kUnavailable) where `a` and `b` are one GPU or cannot reach each other's memory, and
// Error(kDeadline) naming the two when the bytes have not arrived in time; what was queued and the
// memory it works on are then left behind.
double copy_engine_rate(int a, int b, std::size_t bytes, Deadline deadline);
// Stores of 16 bytes by all multiprocessors.
double store_rate(int a, int b, std::size_t bytes, Deadline deadline);

}  // namespace rowband::cuda
