#include "rowband/trace/totals.h"

#include <gtest/gtest.h>

namespace rowband {
namespace {

TEST(Totals, SumsOverLanesAndRanksInLegendOrder) {
  const std::vector<ActivityTotal> totals = activity_totals({
      {1, "w", Activity::kWait, "", 0, 3},
      {0, "w", Activity::kGemm, "", 0, 10},
      {1, "w", Activity::kGemm, "", 3, 10},
      {0, "v", Activity::kGemm, "", 5, 10},
  });
  ASSERT_EQ(totals.size(), 2U);
  EXPECT_EQ(totals[0].activity, Activity::kGemm);
  EXPECT_EQ(totals[0].busy_ns, 22);
  EXPECT_EQ(totals[1].activity, Activity::kWait);
  EXPECT_EQ(totals[1].busy_ns, 3);
}

TEST(Totals, TransferIsUnderTheGemmOfItsOwnRankOnly) {
  const std::vector<ActivityTotal> totals = activity_totals({
      {0, "worker 0", Activity::kGemm, "", 10, 20},
      {0, "worker 1", Activity::kGemm, "", 15, 30},  // overlaps the other worker: counts once
      {0, "worker 0", Activity::kGemm, "", 40, 50},
      {1, "worker 0", Activity::kGemm, "", 0, 1000},
      {0, "copy", Activity::kScatter, "", 5, 45},  // under 10..30 and 40..45
      {0, "copy", Activity::kGather, "", 50, 60},  // after the last tile
      {2, "copy", Activity::kAllReduce, "", 10, 20},
  });
  ASSERT_EQ(totals.size(), 4U);
  EXPECT_EQ(totals[1].activity, Activity::kScatter);
  EXPECT_EQ(totals[1].busy_ns, 40);
  EXPECT_EQ(totals[1].under_gemm_ns, 25);
  EXPECT_EQ(totals[2].activity, Activity::kGather);
  EXPECT_EQ(totals[2].under_gemm_ns, 0);
  EXPECT_EQ(totals[3].activity, Activity::kAllReduce);
  EXPECT_EQ(totals[3].busy_ns, 10);
  EXPECT_EQ(totals[3].under_gemm_ns, 0);
}

TEST(Totals, NothingForNothing) { EXPECT_TRUE(activity_totals({}).empty()); }

}  // namespace
}  // namespace rowband
