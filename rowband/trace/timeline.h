// A timeline: what each lane (a worker, a copy thread, a leg) did from when to when, in one call.
// Engines record into it; the two writers below draw it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace rowband {

// What an interval was spent on. Order is the order of the legend.
enum class Activity { kGemm, kReduce, kScatter, kGather, kWiden, kQuantize, kWait, kAllReduce };
inline constexpr int kActivityCount = static_cast<int>(Activity::kAllReduce) + 1;

std::string_view activity_name(Activity activity);  // "gemm", "reduce", ...

struct TimelineEvent {
  int rank = 0;
  std::string lane;  // "worker 0", "copy thread": a row of the picture within its rank
  Activity activity = Activity::kGemm;
  std::string label;          // "band 1 chunk 0 rows 256..511 cols 0..255"
  std::int64_t begin_ns = 0;  // any common clock; the writers shift the earliest event to 0
  std::int64_t end_ns = 0;
};

// Thread-safe: many ranks and workers add to one timeline.
class Timeline {
 public:
  // Takes all of `events` or, when one of them is impossible (it ends before it begins, its rank is
  // negative, its lane has no name), none: throws Error(kInvalidArgument).
  void add(std::vector<TimelineEvent> events);
  // Sorted by rank, lane, begin, then the rest: the order of adding, which is chance, does not
  // show. Numbers in lane names sort as numbers: "worker 2", "worker 10".
  std::vector<TimelineEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TimelineEvent> events_;
};

// Both writers replace `path` only when the new file is whole, and throw Error(kIo) when it cannot
// be. A timeline without events throws Error(kInvalidArgument), since a blank picture would hide
// that nothing was recorded.

// One picture: a row per (rank, lane), colours per activity, a time axis in ms, a legend, `title`.
// Intervals too narrow to be seen are drawn together, so the file stays small for any number.
void write_timeline_svg(const Timeline& timeline, const std::string& title,
                        const std::filesystem::path& path);

// The JSON trace-event format, which https://ui.perfetto.dev and chrome://tracing open: a process
// per rank, a thread per lane. A lane whose intervals overlap is spread over several threads, since
// the format lets one thread do one thing at a time.
void write_timeline_perfetto(const Timeline& timeline, const std::filesystem::path& path);

}  // namespace rowband
