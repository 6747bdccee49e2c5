#include "rowband/cli/leg_times.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <utility>

namespace rowband::cli {
namespace {

using Span = std::pair<std::int64_t, std::int64_t>;

std::int64_t union_ns(std::vector<Span> spans) {
  std::ranges::sort(spans);
  std::int64_t covered = 0, end = INT64_MIN;
  for (const auto& [begin_ns, end_ns] : spans) {
    if (end_ns <= end) continue;
    covered += end_ns - std::max(begin_ns, end);
    end = end_ns;
  }
  return covered;
}

double leg_ms(const std::vector<TimelineEvent>& events, std::initializer_list<Activity> leg) {
  std::map<int, std::vector<Span>> by_rank;
  for (const TimelineEvent& event : events) {
    if (std::ranges::find(leg, event.activity) == leg.end()) continue;
    by_rank[event.rank].emplace_back(event.begin_ns, event.end_ns);
  }
  std::int64_t longest = 0;
  for (auto& [rank, spans] : by_rank) longest = std::max(longest, union_ns(std::move(spans)));
  return static_cast<double>(longest) / 1e6;
}

}  // namespace

LegTimes leg_times(const std::vector<TimelineEvent>& events) {
  return {.gemm_ms = leg_ms(events, {Activity::kGemm}),
          .scatter_ms = leg_ms(events, {Activity::kScatter}),
          .reduce_ms = leg_ms(events, {Activity::kReduce}),
          .gather_ms = leg_ms(events, {Activity::kGather, Activity::kWiden})};
}

}  // namespace rowband::cli
