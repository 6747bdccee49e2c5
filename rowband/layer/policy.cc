#include "rowband/layer/policy.h"

#include <algorithm>

#include "rowband/base/fail.h"
#include "rowband/layer/fusion_table.h"

namespace rowband {

std::string_view decision_name(Decision decision) {
  switch (decision) {
    case Decision::kFuse:
      return "fuse";
    case Decision::kDisabled:
      return "disabled";
    case Decision::kUnavailable:
      return "unavailable";
    case Decision::kTooManyRows:
      return "too_many_rows";
    case Decision::kTooFewRows:
      return "too_few_rows";
    case Decision::kLowFill:
      return "low_fill";
  }
  return "unknown";
}

double fill(const PlanSpec& spec, std::int64_t rows) {
  if (rows == 0) return 1;
  const CallPlan plan(spec, rows);
  std::int64_t largest = 0;
  for (int owner = 0; owner < spec.world; ++owner) {
    largest = std::max(largest, plan.band(owner).size());
  }
  return static_cast<double>(rows) / static_cast<double>(spec.world * largest);
}

FusionPolicy with_measured_limits(FusionPolicy policy, std::string_view engine,
                                  const PlanSpec& spec) {
  if (!policy.min_rows) {
    policy.min_rows = measured_min_rows(engine, spec);
  }
  return policy;
}

Verdict decide(const FusionPolicy& policy, const PlanSpec& spec, std::int64_t rows) {
  if (!policy.enabled) {
    return {Decision::kDisabled, "fusion is off; ROWBAND_FUSE=1 turns it on"};
  }
  if (rows > spec.max_rows) {
    return {Decision::kTooManyRows,
            fmt::format("M={} rows are more than the capacity of {} rows (max_rows)", rows,
                        spec.max_rows)};
  }
  if (!policy.min_rows) fail(ErrorCode::kInternal, "the policy's min_rows was not filled in");
  if (rows < *policy.min_rows) {
    return {Decision::kTooFewRows,
            fmt::format("M={} rows are fewer than min_rows={} rows", rows, *policy.min_rows)};
  }
  if (const double full = fill(spec, rows); full < policy.min_fill) {
    return {Decision::kLowFill,
            fmt::format("M={} rows fill {:.3f} of the bands, less than min_fill={}", rows, full,
                        policy.min_fill)};
  }
  return {};
}

std::int64_t most_declined_rows(const FusionPolicy& policy, const PlanSpec& spec) {
  if (!policy.enabled) return spec.max_rows;
  // The largest band is at most W tile rows longer than its even share, so with f = min_fill no
  // call of W * tile_rows * f / (1 - f) rows or more fills too little.
  const double full = policy.min_fill * static_cast<double>(spec.world * spec.tile_rows) /
                      std::max(1 - policy.min_fill, 1e-12);
  std::int64_t rows = spec.max_rows;
  if (full < static_cast<double>(rows)) {
    rows =
        std::min(rows, std::max(policy.min_rows.value_or(0), static_cast<std::int64_t>(full) + 1));
  }
  while (rows > 0 && decide(policy, spec, rows).decision == Decision::kFuse) --rows;
  return rows;
}

}  // namespace rowband
