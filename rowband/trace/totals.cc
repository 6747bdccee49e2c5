#include "rowband/trace/totals.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

namespace rowband {
namespace {

struct Span {
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

// The times at which something of `spans` ran: by begin, disjoint.
std::vector<Span> merge(std::vector<Span> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  std::vector<Span> merged;
  for (const Span& span : spans) {
    if (!merged.empty() && span.begin_ns <= merged.back().end_ns) {
      merged.back().end_ns = std::max(merged.back().end_ns, span.end_ns);
    } else {
      merged.push_back(span);
    }
  }
  return merged;
}

std::int64_t covered_ns(const TimelineEvent& event, const std::vector<Span>& merged) {
  std::int64_t covered = 0;
  auto span = std::partition_point(merged.begin(), merged.end(),
                                   [&](const Span& s) { return s.end_ns <= event.begin_ns; });
  for (; span != merged.end() && span->begin_ns < event.end_ns; ++span) {
    covered += std::min(span->end_ns, event.end_ns) - std::max(span->begin_ns, event.begin_ns);
  }
  return covered;
}

}  // namespace

std::vector<ActivityTotal> activity_totals(const std::vector<TimelineEvent>& events) {
  std::map<int, std::vector<Span>> gemm_of_rank;
  for (const TimelineEvent& event : events) {
    if (event.activity == Activity::kGemm) {
      gemm_of_rank[event.rank].push_back({event.begin_ns, event.end_ns});
    }
  }
  for (auto& [rank, spans] : gemm_of_rank) spans = merge(std::move(spans));

  std::array<std::optional<ActivityTotal>, kActivityCount> totals;
  for (const TimelineEvent& event : events) {
    auto& total = totals[static_cast<std::size_t>(event.activity)];
    if (!total) total = ActivityTotal{event.activity, 0, 0};
    total->busy_ns += event.end_ns - event.begin_ns;
    total->under_gemm_ns += covered_ns(event, gemm_of_rank[event.rank]);
  }

  std::vector<ActivityTotal> present;
  for (const auto& total : totals) {
    if (total) present.push_back(*total);
  }
  return present;
}

}  // namespace rowband
