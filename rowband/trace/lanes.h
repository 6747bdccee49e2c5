// The rows of the picture: which lanes there are, in which order, and how overlapping intervals of
// one lane share it.
#pragma once

#include <string>
#include <vector>

#include "rowband/trace/timeline.h"

namespace rowband {

// Events of one lane that do not overlap, by begin.
using Track = std::vector<TimelineEvent>;

struct Lane {
  int rank = 0;
  std::string name;
  // One, unless events of the lane overlap: each goes to the first track that is free by then.
  std::vector<Track> tracks;
};

// `events` as Timeline::events() returns them. Lanes come by rank, and within a rank by the
// activity that stands first in the legend among those they did, then by name: workers above the
// threads that only move bytes, so that transfers are seen below the GEMM that hides them.
std::vector<Lane> arrange_lanes(const std::vector<TimelineEvent>& events);

}  // namespace rowband
