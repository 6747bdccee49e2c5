// What makes a result right: close to the float64 reference, the same bits on every rank. All
// functions are collective and tell every rank the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rowband/comm/communicator.h"
#include "rowband/numerics/operands.h"
#include "rowband/op/gemm_all_reduce.h"
#include "rowband/plan/plan.h"

namespace rowband::cli {

// The largest relative L2 error against the float64 reference that is right: rounding each partial
// and the sum to bf16 gives about 2.4e-3; the fp8 wire's 3 mantissa bits give about 2.5e-2.
inline double tolerance(Wire wire) { return wire == Wire::kBf16 ? 3e-3 : 3e-2; }

// Ascending rows, evenly spread, with the first and the last row of every band among them; all of
// them when `most` allows it, and never fewer than the bands' edges.
std::vector<std::int64_t> sample_rows(const CallPlan& plan, int world, std::int64_t most);

// How many rows the float64 reference does in a few seconds on a core.
std::int64_t affordable_rows(std::int64_t cols, std::int64_t total_depth);

// The float64 reference of some rows of one call.
class Reference {
 public:
  // Of rows `x_rows` of `x`. `x` and `w` are this rank's, bias is null or [cols]. The ranks share
  // the work: each multiplies its own slice.
  Reference(Communicator& comm, const ActivationView& x, std::span<const std::int64_t> x_rows,
            const WeightView& w, const Bf16* bias, int threads, Deadline deadline);

  // Of rows `rows` of the result, as many as there were x_rows. Local. NaN when they hold a NaN.
  double relative_l2(const Output& result, std::span<const std::int64_t> rows) const;

 private:
  std::vector<double> values_;
};

// One fingerprint per row.
std::vector<std::uint64_t> row_digests(const Output& result);

// "" when every rank holds the same rows, else the first that differs.
std::string why_ranks_differ(Communicator& comm, std::span<const std::uint64_t> rows,
                             Deadline deadline);
// "" when no rank found anything, else the first rank's finding, on every rank.
std::string first_finding(Communicator& comm, const std::string& own, Deadline deadline);
// The first index at which the two differ; nullopt when they are equal.
std::optional<std::int64_t> first_difference(std::span<const std::uint64_t> a,
                                             std::span<const std::uint64_t> b);

}  // namespace rowband::cli
