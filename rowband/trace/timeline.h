// A timeline: what each lane (a worker, a copy thread, a leg) did from when to when, in one call.
// Engines record into it; the two writers below draw it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

namespace rowband {

// What an interval was spent on. Order is the order of the legend.
enum class Activity { kGemm, kReduce, kScatter, kGather, kWiden, kQuantize, kWait, kAllReduce };

std::string_view activity_name(Activity activity);  // "gemm", "reduce", ...

struct TimelineEvent {
  int rank = 0;
  std::string lane;          // "worker 0", "copy thread": a row of the picture within its rank
  Activity activity = Activity::kGemm;
  std::string label;         // "band 1 chunk 0 rows 256..511 cols 0..255"
  std::int64_t begin_ns = 0;  // any common clock; the writers shift the earliest event to 0
  std::int64_t end_ns = 0;
};

// Thread-safe: many ranks and workers add to one timeline.
class Timeline {
 public:
  void add(std::vector<TimelineEvent> events);
  // Sorted by rank, lane, begin.
  std::vector<TimelineEvent> events() const;

 private:
  mutable std::mutex mutex_;
  std::vector<TimelineEvent> events_;
};

// One picture: a row per (rank, lane), colours per activity, a time axis in ms, a legend, `title`.
// Throws Error(kIo) when the file cannot be written whole.
void write_timeline_svg(const Timeline& timeline, const std::string& title,
                        const std::filesystem::path& path);

// The JSON trace-event format, which https://ui.perfetto.dev and chrome://tracing open: a process per
// rank, a thread per lane. Throws Error(kIo).
void write_timeline_perfetto(const Timeline& timeline, const std::filesystem::path& path);

}  // namespace rowband
