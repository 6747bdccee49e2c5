// The time axis of the picture: nanoseconds to pixels, and where the ticks go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rowband/trace/timeline.h"

namespace rowband {

struct TimeAxis {
  std::int64_t begin_ns = 0;
  std::int64_t span_ns = 1;  // at least 1
  double left = 0;           // pixels
  double width = 1;

  double x(std::int64_t time_ns) const {
    return left + width * static_cast<double>(time_ns - begin_ns) / static_cast<double>(span_ns);
  }
};

struct Tick {
  std::int64_t offset_ns = 0;  // from the begin of the axis
  std::string text;            // in ms, all ticks with the same number of decimals
};

// From the first begin to the last end of `events`, which must not be empty.
TimeAxis fit_axis(const std::vector<TimelineEvent>& events, double left, double width);

// From 0 to at most span_ns, at steps of 1, 2 or 5 times a power of ten: as many as there can be,
// but no more than max_count (at least 2).
std::vector<Tick> time_ticks(std::int64_t span_ns, int max_count);

// "1.25 ms": three significant digits, never an exponent.
std::string duration_text(std::int64_t duration_ns);

}  // namespace rowband
