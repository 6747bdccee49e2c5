// A made-up timeline for the tests of the writers, shaped like a call of the fused path.
#pragma once

#include "rowband/trace/timeline.h"

namespace rowband {

struct SampleShape {
  int ranks = 2;
  int workers = 2;
  int chunks_per_band = 4;
  int tiles_per_chunk = 6;  // per worker
};

// Each rank has workers that compute the bands of its peers, then its own, which they also reduce,
// and a copy thread whose transfers run under the GEMM. The same for the same shape. Times start at
// a large number, as those of a steady clock do.
std::vector<TimelineEvent> sample_timeline(const SampleShape& shape);

}  // namespace rowband
