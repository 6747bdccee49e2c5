#include "rowband/trace/timeline.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "rowband/base/error.h"

namespace rowband {
namespace {

TEST(Timeline, EventsComeSortedByRankLaneAndBegin) {
  Timeline timeline;
  timeline.add(
      {{1, "worker 0", Activity::kGemm, "e", 5, 6}, {0, "worker 10", Activity::kGemm, "d", 0, 1}});
  timeline.add({{0, "worker 2", Activity::kGemm, "c", 9, 10},
                {0, "worker 2", Activity::kGemm, "b", 7, 9},
                {0, "copy thread", Activity::kScatter, "a", 8, 9}});
  std::string order;
  for (const TimelineEvent& event : timeline.events()) order += event.label;
  EXPECT_EQ(order, "abcde");
}

TEST(Timeline, EventsKeepEveryField) {
  Timeline timeline;
  timeline.add({{3, "worker 1", Activity::kReduce, "band 3", -20, -5}});
  const std::vector<TimelineEvent> events = timeline.events();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_EQ(events[0].lane, "worker 1");
  EXPECT_EQ(events[0].activity, Activity::kReduce);
  EXPECT_EQ(events[0].label, "band 3");
  EXPECT_EQ(events[0].begin_ns, -20);
  EXPECT_EQ(events[0].end_ns, -5);
}

// Adds a good event and `bad` together and returns the message of the refusal.
std::string refusal_of(Timeline& timeline, const TimelineEvent& bad) {
  try {
    timeline.add({{0, "worker 0", Activity::kGemm, "good", 0, 1}, bad});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Timeline, ImpossibleEventsAreRefusedAndNothingIsAdded) {
  Timeline timeline;
  const std::string backwards =
      refusal_of(timeline, {2, "worker 7", Activity::kGemm, "tile 9", 120, 119});
  EXPECT_NE(backwards.find("tile 9"), std::string::npos) << backwards;
  EXPECT_NE(backwards.find("worker 7"), std::string::npos) << backwards;
  EXPECT_NE(backwards.find("119 ns"), std::string::npos) << backwards;
  const std::string negative = refusal_of(timeline, {-1, "worker 0", Activity::kGemm, "x", 0, 1});
  EXPECT_NE(negative.find("rank -1"), std::string::npos) << negative;
  const std::string nameless = refusal_of(timeline, {0, "", Activity::kGemm, "x", 0, 1});
  EXPECT_NE(nameless.find("empty lane"), std::string::npos) << nameless;
  EXPECT_TRUE(timeline.events().empty());
}

TEST(Timeline, ThreadsAddAtTheSameTime) {
  constexpr int kThreads = 4;
  constexpr int kAdds = 500;
  Timeline timeline;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kThreads; ++rank) {
    threads.emplace_back([&timeline, rank] {
      for (int i = 0; i < kAdds; ++i) {
        timeline.add({{rank, "worker 0", Activity::kGemm, std::to_string(i), i, i + 1}});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<TimelineEvent> events = timeline.events();
  ASSERT_EQ(events.size(), static_cast<std::size_t>(kThreads * kAdds));
  for (int i = 0; i < kThreads * kAdds; ++i) {
    EXPECT_EQ(events[static_cast<std::size_t>(i)].rank, i / kAdds);
    EXPECT_EQ(events[static_cast<std::size_t>(i)].begin_ns, i % kAdds);
  }
}

TEST(ActivityName, EachHasItsOwn) {
  std::set<std::string_view> names;
  for (int i = 0; i < kActivityCount; ++i) names.insert(activity_name(static_cast<Activity>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kActivityCount));
  EXPECT_EQ(activity_name(Activity::kGemm), "gemm");
  EXPECT_EQ(activity_name(Activity::kAllReduce), "all-reduce");
}

}  // namespace
}  // namespace rowband
