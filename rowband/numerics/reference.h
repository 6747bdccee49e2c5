// The float64 reference and the one error metric.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rowband/numerics/operands.h"
#include "rowband/numerics/types.h"

namespace rowband {

// Sum over ranks of x_r * w_r^T (+ bias once) in float64 on the dequantised operands, with no
// rounding in between. xs and ws hold one view per rank, all of the same rows and cols; bias is
// null or [cols]. Row `rows_wanted[i]` of the result lands in row i of the returned [n, cols]
// matrix. Uses `threads` threads (>= 1). Throws Error(kInvalidArgument) when shapes disagree.
std::vector<double> reference_rows(std::span<const ActivationView> xs,
                                   std::span<const WeightView> ws, const Bf16* bias,
                                   std::span<const std::int64_t> rows_wanted, int threads);

// ||got - want|| / ||want|| in float64; 0 when both are all zero; NaN as soon as either holds a
// NaN, so that no threshold lets it pass. Sizes must be equal.
double relative_l2(std::span<const Bf16> got, std::span<const double> want);
double relative_l2(std::span<const Bf16> got, std::span<const Bf16> want);

}  // namespace rowband
