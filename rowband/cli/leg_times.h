// How long each leg of a traced call ran.
#pragma once

#include <vector>

#include "rowband/trace/timeline.h"

namespace rowband::cli {

// The time during which at least one lane of a rank worked on the leg, the maximum over ranks. Legs
// of a fused call overlap.
struct LegTimes {
  double gemm_ms = 0;
  double scatter_ms = 0;
  double reduce_ms = 0;
  double gather_ms = 0;  // widening the fp8 wire's codes included
};

LegTimes leg_times(const std::vector<TimelineEvent>& events);

}  // namespace rowband::cli
