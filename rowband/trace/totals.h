// What a timeline adds up to: how long each activity took, and how much of it the GEMM hid.
#pragma once

#include <cstdint>
#include <vector>

#include "rowband/trace/timeline.h"

namespace rowband {

struct ActivityTotal {
  Activity activity = Activity::kGemm;
  std::int64_t busy_ns = 0;  // summed over all lanes of all ranks
  // The part of busy_ns during which at least one lane of the same rank ran a GEMM.
  std::int64_t under_gemm_ns = 0;
};

// One entry per activity that occurs, in legend order. `events` in any order.
std::vector<ActivityTotal> activity_totals(const std::vector<TimelineEvent>& events);

}  // namespace rowband
