// Tables, legs and the gathering of timelines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rowband/base/error.h"
#include "rowband/cli/leg_times.h"
#include "rowband/cli/options.h"
#include "rowband/cli/table.h"
#include "rowband/cli/trace_files.h"
#include "rowband/comm/threads.h"

namespace rowband::cli {
namespace {

Table sample_table() {
  Table table({{"name", Table::Align::kLeft}, {"ms"}});
  table.add({"base", "12.50"});
  table.add({"a longer one", "3.25"});
  return table;
}

TEST(Table, TextIsAligned) {
  EXPECT_EQ(sample_table().text(),
            "name             ms\n"
            "------------  -----\n"
            "base          12.50\n"
            "a longer one   3.25\n");
}

TEST(Table, MarkdownIsAlignedToo) {
  EXPECT_EQ(sample_table().markdown(),
            "| name         |    ms |\n"
            "| :----------- | ----: |\n"
            "| base         | 12.50 |\n"
            "| a longer one |  3.25 |\n");
}

TEST(Table, RefusesARowOfAnotherWidth) { EXPECT_THROW(sample_table().add({"one"}), Error); }

TEST(BytesText, PicksTheUnit) {
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(std::int64_t{5} << 40), "5.0 TiB");
}

TEST(LegTimes, CountOverlappingLanesOnceAndTakeTheSlowestRank) {
  constexpr std::int64_t kMs = 1'000'000;
  const std::vector<TimelineEvent> events = {
      {0, "worker 0", Activity::kGemm, "", 0, 4 * kMs},
      {0, "worker 1", Activity::kGemm, "", 2 * kMs, 5 * kMs},
      {0, "worker 0", Activity::kGemm, "", 6 * kMs, 7 * kMs},
      {1, "worker 0", Activity::kGemm, "", 0, 5 * kMs},
      {1, "worker 0", Activity::kGather, "", 5 * kMs, 6 * kMs},
      {1, "worker 0", Activity::kWiden, "", 6 * kMs, 8 * kMs}};
  const LegTimes legs = leg_times(events);
  EXPECT_DOUBLE_EQ(legs.gemm_ms, 6);
  EXPECT_DOUBLE_EQ(legs.gather_ms, 3);
  EXPECT_DOUBLE_EQ(legs.scatter_ms, 0);
}

TEST(GatherTimeline, EveryRankGetsTheEventsOfAll) {
  run_ranks(3, [](Communicator& comm) {
    Timeline own;
    std::vector<TimelineEvent> events;
    for (int i = 0; i <= 10 * comm.rank(); ++i) {  // of different lengths
      events.push_back({comm.rank(), "worker 0", Activity::kReduce, "tile", i, i + 1});
    }
    own.add(events);
    const auto all =
        gather_timeline(comm, own, Deadline::after(std::chrono::seconds(60)))->events();
    ASSERT_EQ(all.size(), 1u + 11u + 21u);
    EXPECT_EQ(all.back().rank, 2);
    EXPECT_EQ(all.back().begin_ns, 20);
    EXPECT_EQ(all.back().activity, Activity::kReduce);
    EXPECT_EQ(all.back().label, "tile");
  });
}

TEST(TraceFiles, NamesOfThePictureAndTheTraceBesideIt) {
  EXPECT_EQ(perfetto_path("out/x.svg"), "out/x.perfetto.json");
  EXPECT_NO_THROW(require_svg_name("--trace", "x.svg"));
  EXPECT_THROW(require_svg_name("--trace", "x.png"), Error);
}

}  // namespace
}  // namespace rowband::cli
