// Large results on the host, compared by several threads.
#pragma once

#include <cstdint>
#include <span>

#include "rowband/numerics/types.h"

namespace rowband::cli {

// One fingerprint of all values, whatever the number of threads.
std::uint64_t digest_of_result(std::span<const Bf16> values, int threads);

// As relative_l2 of numerics/reference.h, but for the order of the adds. NaN when one of the two
// holds a NaN.
double relative_l2_of_results(std::span<const Bf16> got, std::span<const Bf16> want, int threads);

}  // namespace rowband::cli
