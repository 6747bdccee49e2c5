// The fusion policy: fuse a call, or decline and say why. Decided from values that are the same on
// all ranks, before anything is launched. `rowband plan` and the layer ask the same function.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rowband/plan/plan.h"

namespace rowband {

enum class Decision {
  kFuse,
  kDisabled,     // ROWBAND_FUSE is not on
  kUnavailable,  // the op could not be made; the reason is in the log
  kTooManyRows,  // M is beyond the capacity
  kTooFewRows,   // M is below min_rows
  kLowFill,      // the bands are too uneven
};
inline constexpr int kDecisions = 6;
std::string_view decision_name(Decision decision);  // "fuse", "disabled", ...

struct FusionPolicy {
  bool enabled = false;  // opt-in
  // Rows (tokens) of the whole call, not bytes. Without it, what was measured for the engine,
  // transport, wire and shape: fusion_table.h.
  std::optional<std::int64_t> min_rows;
  double min_fill = 0.5;  // in 0..1, see fill()
};

// The policy with min_rows filled in for an engine of this name.
FusionPolicy with_measured_limits(FusionPolicy policy, std::string_view engine,
                                  const PlanSpec& spec);

// M / (W * rows of the largest band): 1 when all bands are equally long, 1 / W when one rank owns
// everything, since the largest band's owner reduces and sends while the others wait. 1 for M = 0.
double fill(const PlanSpec& spec, std::int64_t rows);

struct Verdict {
  Decision decision = Decision::kFuse;
  std::string reason;  // in words, with the numbers and their units; "" when fused
};
// `policy` has its min_rows.
Verdict decide(const FusionPolicy& policy, const PlanSpec& spec, std::int64_t rows);

// The most rows, up to spec.max_rows, of a call that an enabled policy declines; 0 when it fuses
// them all.
std::int64_t most_declined_rows(const FusionPolicy& policy, const PlanSpec& spec);

}  // namespace rowband
