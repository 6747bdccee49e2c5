#include "rowband/layer/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "rowband/base/error.h"
#include "rowband/engines/engine.h"
#include "rowband/layer/fusion_table.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;

PlanSpec spec_of(int world, std::int64_t max_rows = 4096) {
  return make_engine(EngineKind::kHost, 0, {.threads = 1, .gemm_kernel = ""})
      ->with_tiles({.max_rows = max_rows, .cols = 256, .depth = 128, .world = world});
}

FusionPolicy everything() { return {.enabled = true, .min_rows = 0, .min_fill = 0}; }

TEST(Policy, FillIsOneForEqualBandsAndOneInWForASingleOne) {
  for (int world = 1; world <= 8; ++world) {
    const PlanSpec spec = spec_of(world);
    EXPECT_EQ(fill(spec, 0), 1);
    EXPECT_EQ(fill(spec, 1), 1.0 / world);
    EXPECT_EQ(fill(spec, 32), 1.0 / world);  // one tile of the smallest height
    EXPECT_EQ(fill(spec, 32 * world), 1);    // one of them for each rank
    EXPECT_EQ(fill(spec, 256 * world), 1);   // and one of the largest
    EXPECT_EQ(fill(spec, 32 * (world + 1)),  // one rank has two
              (world + 1.0) / (2.0 * world));
  }
}

TEST(Policy, FillCountsRowsNotTiles) {
  EXPECT_EQ(fill(spec_of(2), 33), 33.0 / (2 * 32));
  EXPECT_EQ(fill(spec_of(2), 63), 63.0 / (2 * 32));
  EXPECT_EQ(fill(spec_of(3), 1000), 1000.0 / (3 * 512));  // bands of 512, 256 and 232 rows
}

TEST(Policy, FillIsTheShareOfTheLargestBand) {
  for (int world = 1; world <= 8; ++world) {
    const PlanSpec spec = spec_of(world);
    for (std::int64_t rows = 1; rows <= spec.max_rows; rows += 61) {
      const CallPlan plan(spec, rows);
      std::int64_t largest = 0;
      for (int owner = 0; owner < world; ++owner) {
        largest = std::max(largest, plan.band(owner).size());
      }
      const double got = fill(spec, rows);
      ASSERT_NEAR(got * world * static_cast<double>(largest), static_cast<double>(rows), 1e-6)
          << rows;
      ASSERT_GE(got, 1.0 / world);
      ASSERT_LE(got, 1.0);
    }
  }
}

TEST(Policy, ThresholdsAtBelowAndAbove) {
  const PlanSpec spec = spec_of(2);
  FusionPolicy policy = everything();
  policy.min_rows = 64;
  EXPECT_EQ(decide(policy, spec, 63).decision, Decision::kTooFewRows);
  EXPECT_EQ(decide(policy, spec, 64).decision, Decision::kFuse);
  EXPECT_EQ(decide(policy, spec, 65).decision, Decision::kFuse);
  EXPECT_EQ(decide(policy, spec, 4095).decision, Decision::kFuse);
  EXPECT_EQ(decide(policy, spec, 4096).decision, Decision::kFuse);
  EXPECT_EQ(decide(policy, spec, 4097).decision, Decision::kTooManyRows);
  policy = everything();
  policy.min_fill = 33.0 / 64;
  EXPECT_EQ(decide(policy, spec, 32).decision, Decision::kLowFill);
  EXPECT_EQ(decide(policy, spec, 33).decision, Decision::kFuse);
  EXPECT_EQ(decide(policy, spec, 34).decision, Decision::kFuse);
}

TEST(Policy, TheFirstReasonThatHoldsIsGiven) {
  const PlanSpec spec = spec_of(2);
  FusionPolicy policy{.enabled = false, .min_rows = 5000, .min_fill = 1};
  EXPECT_EQ(decide(policy, spec, 5000).decision, Decision::kDisabled);
  policy.enabled = true;
  EXPECT_EQ(decide(policy, spec, 4097).decision, Decision::kTooManyRows);
  EXPECT_EQ(decide(policy, spec, 33).decision, Decision::kTooFewRows);
  policy.min_rows = 33;
  EXPECT_EQ(decide(policy, spec, 33).decision, Decision::kLowFill);
  EXPECT_EQ(decide(policy, spec, 64).decision, Decision::kFuse);
}

TEST(Policy, NoRowsCanBeFused) {
  EXPECT_EQ(decide(everything(), spec_of(4), 0).decision, Decision::kFuse);
  FusionPolicy policy = everything();
  policy.min_fill = 1;
  EXPECT_EQ(decide(policy, spec_of(4), 0).decision, Decision::kFuse);
  policy.min_rows = 1;
  EXPECT_EQ(decide(policy, spec_of(4), 0).decision, Decision::kTooFewRows);
}

TEST(Policy, C05_ReasonsGiveTheNumbersAndTheirUnits) {
  const PlanSpec spec = spec_of(2);
  FusionPolicy policy{.enabled = true, .min_rows = 64, .min_fill = 0.75};
  EXPECT_EQ(decide(policy, spec, 64).reason, "");
  EXPECT_THAT(decide(policy, spec, 4097).reason,
              AllOf(HasSubstr("M=4097 rows"), HasSubstr("4096 rows"), HasSubstr("max_rows")));
  EXPECT_THAT(decide(policy, spec, 63).reason,
              AllOf(HasSubstr("M=63 rows"), HasSubstr("min_rows=64 rows")));
  EXPECT_THAT(decide(policy, spec, 65).reason,  // bands of 64 and 1 rows
              AllOf(HasSubstr("M=65 rows"), HasSubstr("0.508"), HasSubstr("min_fill=0.75")));
  policy.enabled = false;
  EXPECT_THAT(decide(policy, spec, 64).reason, HasSubstr("ROWBAND_FUSE=1"));
}

TEST(Policy, WithoutMinRowsTheMeasuredOneOfTheEngineHolds) {
  const PlanSpec spec = spec_of(2);
  FusionPolicy policy;
  policy.enabled = true;
  EXPECT_THROW(decide(policy, spec, 64), Error);
  const FusionPolicy host = with_measured_limits(policy, "host", spec);
  const FusionPolicy cuda = with_measured_limits(policy, "cuda", spec);
  EXPECT_EQ(host.min_rows, measured_min_rows("host", spec));
  EXPECT_EQ(cuda.min_rows, measured_min_rows("cuda", spec));
  EXPECT_EQ(decide(host, spec, *host.min_rows).decision, Decision::kFuse);
  EXPECT_EQ(decide(host, spec, *host.min_rows - 1).decision, Decision::kTooFewRows);
  policy.min_rows = 7;  // the user's own
  EXPECT_EQ(with_measured_limits(policy, "cuda", spec).min_rows, 7);
  EXPECT_THROW(with_measured_limits({}, "abacus", spec), Error);
}

TEST(Policy, EveryShapeHasAMeasuredLimitThatSomeCallsReach) {
  for (const char* engine : {"host", "cuda"}) {
    for (int world : {1, 2, 8}) {
      for (std::int64_t cols : {8, 5120, 7168, 1 << 20}) {
        for (std::int64_t depth : {128, 2048, 8192}) {
          for (Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
            for (Wire wire : {Wire::kBf16, Wire::kFp8}) {
              const PlanSpec spec{.cols = cols,
                                  .depth = depth,
                                  .world = world,
                                  .wire = wire,
                                  .transport = transport};
              const std::int64_t rows = measured_min_rows(engine, spec);
              EXPECT_GT(rows, 0);
              EXPECT_LE(rows, 32768);
            }
          }
        }
      }
    }
  }
}

TEST(Policy, TheLimitIsThatOfTheTransportAndTheWire) {
  const auto limit = [](Transport transport, Wire wire, int world) {
    return measured_min_rows(
        "cuda",
        {.cols = 7168, .depth = 2048, .world = world, .wire = wire, .transport = transport});
  };
  for (int world : {2, 8}) {  // 8 was not measured
    const auto direct = limit(Transport::kDirect, Wire::kBf16, world);
    const auto codes = limit(Transport::kDirect, Wire::kFp8, world);
    const auto copied = limit(Transport::kCopyEngine, Wire::kBf16, world);
    EXPECT_LT(direct, codes);
    EXPECT_LT(codes, copied);
    // Not measured: that of its transport, not of its wire.
    EXPECT_EQ(limit(Transport::kCopyEngine, Wire::kFp8, world), copied);
  }
}

// docs/performance.md has the sweep over M. Below: the largest M at which fused took no less than
// base, or 0.99 of it, which another run may turn; and the next one that was measured.
TEST(Policy, NoCallIsFusedWhereTheSweepFoundItSlower) {
  const auto limit = [](Transport transport, Wire wire) {
    return measured_min_rows(
        "cuda", {.cols = 7168, .depth = 2048, .world = 2, .wire = wire, .transport = transport});
  };
  const auto direct = limit(Transport::kDirect, Wire::kBf16);
  EXPECT_GT(direct, 4);
  EXPECT_LE(direct, 8);
  const auto codes = limit(Transport::kDirect, Wire::kFp8);
  EXPECT_GT(codes, 96);
  EXPECT_LE(codes, 128);
  const auto copied = limit(Transport::kCopyEngine, Wire::kBf16);
  EXPECT_GT(copied, 2048);
  EXPECT_LE(copied, 3072);
}

TEST(Policy, MostDeclinedRowsIsTheLastThatASearchFinds) {
  for (int world = 1; world <= 8; ++world) {
    for (std::int64_t max_rows : {1, 40, 700, 4096}) {
      const PlanSpec spec = spec_of(world, max_rows);
      for (std::int64_t min_rows : {0, 1, 300, 5000}) {
        for (double min_fill : {0.0, 0.5, 0.75, 0.97, 1.0}) {
          const FusionPolicy policy{true, min_rows, min_fill};
          std::int64_t most = max_rows;
          while (most > 0 && decide(policy, spec, most).decision == Decision::kFuse) --most;
          EXPECT_EQ(most_declined_rows(policy, spec), most)
              << world << " " << max_rows << " " << min_rows << " " << min_fill;
        }
      }
    }
  }
  EXPECT_EQ(most_declined_rows({.enabled = false, .min_rows = 0}, spec_of(2, 100)), 100);
}

TEST(Policy, EveryDecisionHasItsOwnName) {
  std::set<std::string> names;
  for (int i = 0; i < kDecisions; ++i) {
    names.insert(std::string(decision_name(static_cast<Decision>(i))));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kDecisions));
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_EQ(decision_name(Decision::kFuse), "fuse");
}

}  // namespace
}  // namespace rowband
