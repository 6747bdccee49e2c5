// The bars of one track of the picture. What is at least a pixel wide is a bar of its own; narrower
// intervals share bars of whole pixels, so a track has at most two bars for each pixel.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "rowband/trace/lanes.h"
#include "rowband/trace/time_axis.h"

namespace rowband {

struct Mark {
  double x = 0;  // pixels
  double width = 0;
  bool narrow = false;  // of whole pixels, for what is narrower than one
  Activity activity = Activity::kGemm;
  std::int64_t begin_ns = 0;                           // of its first interval, on the axis
  std::int64_t count = 1;                              // intervals
  std::array<std::int64_t, kActivityCount> busy_ns{};  // time of its intervals, per activity
  std::string label;                                   // empty when there are several intervals
};

// By begin. Where narrow bars of several activities follow each other, each activity gets as many
// of the pixels as its share of the time. Narrow bars may cover an edge of their neighbours and are
// to be drawn on top of them, or a short wait between two tiles would vanish.
std::vector<Mark> marks_of(const Track& track, const TimeAxis& axis);

}  // namespace rowband
