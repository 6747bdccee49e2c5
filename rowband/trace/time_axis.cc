#include "rowband/trace/time_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rowband {
namespace {

constexpr double kNsPerMs = 1e6;

std::int64_t tick_step(std::int64_t span_ns, int max_count) {
  for (std::int64_t decade = 1;; decade *= 10) {
    for (const std::int64_t digit : {1, 2, 5}) {
      const std::int64_t step = digit * decade;
      if (span_ns / step < max_count) return step;
    }
  }
}

// How many decimals a number of ms needs to show `ns`, a power of ten times 1, 2 or 5.
int decimals_of_step(std::int64_t ns) {
  int decimals = 6;
  for (; decimals > 0 && ns % 10 == 0; ns /= 10) --decimals;
  return decimals;
}

}  // namespace

TimeAxis fit_axis(const std::vector<TimelineEvent>& events, double left, double width) {
  std::int64_t begin = events.front().begin_ns;
  std::int64_t end = events.front().end_ns;
  for (const TimelineEvent& event : events) {
    begin = std::min(begin, event.begin_ns);
    end = std::max(end, event.end_ns);
  }
  return {begin, std::max<std::int64_t>(end - begin, 1), left, width};
}

std::vector<Tick> time_ticks(std::int64_t span_ns, int max_count) {
  const std::int64_t step = tick_step(span_ns, max_count);
  const int decimals = decimals_of_step(step);
  std::vector<Tick> ticks;
  for (std::int64_t index = 0; index <= span_ns / step; ++index) {
    const std::int64_t offset = index * step;
    ticks.push_back(
        {offset, fmt::format("{:.{}f}", static_cast<double>(offset) / kNsPerMs, decimals)});
  }
  return ticks;
}

std::string duration_text(std::int64_t duration_ns) {
  if (duration_ns == 0) return "0 ms";
  const double ms = static_cast<double>(duration_ns) / kNsPerMs;
  const int magnitude = static_cast<int>(std::floor(std::log10(ms)));
  return fmt::format("{:.{}f} ms", ms, std::clamp(2 - magnitude, 0, 6));
}

}  // namespace rowband
