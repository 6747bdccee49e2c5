#include "rowband/trace/lanes.h"

#include <algorithm>
#include <utility>

namespace rowband {
namespace {

void place(Lane& lane, const TimelineEvent& event) {
  const auto free_track =
      std::find_if(lane.tracks.begin(), lane.tracks.end(),
                   [&](const Track& track) { return track.back().end_ns <= event.begin_ns; });
  if (free_track == lane.tracks.end()) {
    lane.tracks.push_back({event});
  } else {
    free_track->push_back(event);
  }
}

Activity first_activity(const Lane& lane) {
  Activity first = lane.tracks.front().front().activity;
  for (const Track& track : lane.tracks) {
    for (const TimelineEvent& event : track) first = std::min(first, event.activity);
  }
  return first;
}

}  // namespace

std::vector<Lane> arrange_lanes(const std::vector<TimelineEvent>& events) {
  std::vector<std::pair<Activity, Lane>> keyed;
  for (const TimelineEvent& event : events) {
    if (keyed.empty() || keyed.back().second.rank != event.rank ||
        keyed.back().second.name != event.lane) {
      keyed.emplace_back(event.activity, Lane{event.rank, event.lane, {}});
    }
    place(keyed.back().second, event);
  }
  for (auto& [activity, lane] : keyed) activity = first_activity(lane);
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second.rank, a.first) < std::pair(b.second.rank, b.first);
  });
  std::vector<Lane> lanes;
  lanes.reserve(keyed.size());
  for (auto& entry : keyed) lanes.push_back(std::move(entry.second));
  return lanes;
}

}  // namespace rowband
