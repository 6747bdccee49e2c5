#include <nlohmann/json.hpp>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/trace/lanes.h"
#include "rowband/trace/text_file.h"
#include "rowband/trace/time_axis.h"
#include "rowband/trace/timeline.h"

namespace rowband {
namespace {

using nlohmann::json;

double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e3; }

// Process 0 is the idle task to Perfetto, so rank 0 may not be it.
int process_id(int rank) { return rank + 1; }

json metadata(const char* name, int process, int thread, json args) {
  return {
      {"ph", "M"}, {"name", name}, {"pid", process}, {"tid", thread}, {"args", std::move(args)}};
}

void append_process(json& events, int rank, int thread) {
  const int process = process_id(rank);
  events.push_back(
      metadata("process_name", process, thread, {{"name", fmt::format("rank {}", rank)}}));
  events.push_back(metadata("process_sort_index", process, thread, {{"sort_index", rank}}));
}

void append_track(json& events, const Lane& lane, std::size_t track, int thread,
                  std::int64_t origin_ns) {
  const std::string name =
      track == 0 ? lane.name : fmt::format("{} (overlap {})", lane.name, track);
  const int process = process_id(lane.rank);
  events.push_back(metadata("thread_name", process, thread, {{"name", name}}));
  events.push_back(metadata("thread_sort_index", process, thread, {{"sort_index", thread}}));
  for (const TimelineEvent& event : lane.tracks[track]) {
    // The viewers colour and add up by name: so it is the activity, and the label an argument.
    events.push_back({{"ph", "X"},
                      {"name", activity_name(event.activity)},
                      {"cat", "rowband"},
                      {"pid", process},
                      {"tid", thread},
                      {"ts", microseconds(event.begin_ns - origin_ns)},
                      {"dur", microseconds(event.end_ns - event.begin_ns)},
                      {"args", {{"label", event.label}}}});
  }
}

}  // namespace

void write_timeline_perfetto(const Timeline& timeline, const std::filesystem::path& path) {
  const std::vector<TimelineEvent> events = timeline.events();
  if (events.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "the timeline for '{}' has no events; record a call before writing it", path.string());
  }
  const std::int64_t origin_ns = fit_axis(events, 0, 1).begin_ns;

  json trace_events = json::array();
  int rank = -1;
  // A thread's number is its own across all processes and differs from theirs: Perfetto takes a
  // thread with the number of its process for the main thread, and mixes up threads of one number.
  int thread = process_id(events.back().rank) + 1;
  for (const Lane& lane : arrange_lanes(events)) {
    if (lane.rank != rank) {
      rank = lane.rank;
      append_process(trace_events, rank, thread);
    }
    for (std::size_t track = 0; track < lane.tracks.size(); ++track) {
      append_track(trace_events, lane, track, thread++, origin_ns);
    }
  }
  const json trace = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(trace_events)}};
  write_text_file(path, trace.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace rowband
