#include "rowband/trace/lanes.h"

#include <gtest/gtest.h>

namespace rowband {
namespace {

std::vector<Lane> arrange(std::vector<TimelineEvent> events) {
  Timeline timeline;
  timeline.add(std::move(events));
  return arrange_lanes(timeline.events());
}

TEST(Lanes, ThoseThatOnlyMoveBytesStandBelowTheWorkersOfTheirRank) {
  const std::vector<Lane> lanes = arrange({
      {1, "worker 0", Activity::kGemm, "", 0, 1},
      {0, "copy thread", Activity::kScatter, "", 0, 1},
      {0, "copy thread", Activity::kGather, "", 1, 2},
      {0, "worker 10", Activity::kWait, "", 0, 1},
      {0, "worker 10", Activity::kGemm, "", 1, 2},
      {0, "worker 9", Activity::kGemm, "", 0, 1},
      {0, "a barrier", Activity::kWait, "", 0, 1},
  });
  std::vector<std::string> names;
  for (const Lane& lane : lanes) names.push_back(std::to_string(lane.rank) + " " + lane.name);
  EXPECT_EQ(names, (std::vector<std::string>{"0 worker 9", "0 worker 10", "0 copy thread",
                                             "0 a barrier", "1 worker 0"}));
}

TEST(Lanes, TouchingEventsShareATrack) {
  const std::vector<Lane> lanes = arrange({
      {0, "w", Activity::kGemm, "a", 0, 5},
      {0, "w", Activity::kReduce, "b", 5, 5},
      {0, "w", Activity::kGemm, "c", 5, 9},
  });
  ASSERT_EQ(lanes.size(), 1U);
  ASSERT_EQ(lanes[0].tracks.size(), 1U);
  EXPECT_EQ(lanes[0].tracks[0].size(), 3U);
}

TEST(Lanes, OverlappingEventsGetTracksOfTheirOwn) {
  const std::vector<Lane> lanes = arrange({
      {0, "copies", Activity::kScatter, "a", 0, 10},
      {0, "copies", Activity::kGather, "b", 4, 14},
      {0, "copies", Activity::kScatter, "c", 10, 12},
      {0, "copies", Activity::kScatter, "d", 11, 20},
  });
  ASSERT_EQ(lanes.size(), 1U);
  std::vector<std::string> tracks;
  for (const Track& track : lanes[0].tracks) {
    tracks.emplace_back();
    for (const TimelineEvent& event : track) tracks.back() += event.label;
  }
  EXPECT_EQ(tracks, (std::vector<std::string>{"ac", "b", "d"}));
}

TEST(Lanes, SameNameOnTwoRanksIsTwoLanes) {
  const std::vector<Lane> lanes =
      arrange({{0, "w", Activity::kGemm, "", 0, 1}, {1, "w", Activity::kGemm, "", 0, 1}});
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].rank, 0);
  EXPECT_EQ(lanes[1].rank, 1);
}

}  // namespace
}  // namespace rowband
