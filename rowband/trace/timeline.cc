#include "rowband/trace/timeline.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/trace/natural_order.h"

namespace rowband {
namespace {

void check(const TimelineEvent& event) {
  if (event.rank < 0) {
    fail(ErrorCode::kInvalidArgument, "timeline event '{}' has rank {}; ranks count from 0",
         event.label, event.rank);
  }
  if (event.lane.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "timeline event '{}' of rank {} has an empty lane; name what ran it, like 'worker 0'",
         event.label, event.rank);
  }
  if (event.end_ns < event.begin_ns) {
    fail(ErrorCode::kInvalidArgument,
         "timeline event '{}' of rank {}, lane '{}' ends at {} ns, before it begins at {} ns",
         event.label, event.rank, event.lane, event.end_ns, event.begin_ns);
  }
}

bool in_order(const TimelineEvent& a, const TimelineEvent& b) {
  if (a.rank != b.rank) return a.rank < b.rank;
  if (a.lane != b.lane) return natural_less(a.lane, b.lane);
  return std::tie(a.begin_ns, a.end_ns, a.activity, a.label) <
         std::tie(b.begin_ns, b.end_ns, b.activity, b.label);
}

}  // namespace

std::string_view activity_name(Activity activity) {
  switch (activity) {
    case Activity::kGemm:
      return "gemm";
    case Activity::kReduce:
      return "reduce";
    case Activity::kScatter:
      return "scatter";
    case Activity::kGather:
      return "gather";
    case Activity::kWiden:
      return "widen";
    case Activity::kQuantize:
      return "quantize";
    case Activity::kWait:
      return "wait";
    case Activity::kAllReduce:
      return "all-reduce";
  }
  fail(ErrorCode::kInternal, "activity {} has no name; activities go from 0 to {}",
       static_cast<int>(activity), kActivityCount - 1);
}

void Timeline::add(std::vector<TimelineEvent> events) {
  std::for_each(events.begin(), events.end(), check);
  const std::lock_guard lock(mutex_);
  events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                 std::make_move_iterator(events.end()));
}

std::vector<TimelineEvent> Timeline::events() const {
  std::vector<TimelineEvent> sorted;
  {
    const std::lock_guard lock(mutex_);
    sorted = events_;
  }
  std::stable_sort(sorted.begin(), sorted.end(), in_order);
  return sorted;
}

}  // namespace rowband
