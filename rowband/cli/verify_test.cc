#include "rowband/cli/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "rowband/comm/threads.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband::cli {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

PlanSpec spec_of(std::int64_t rows, int world) {
  return {.max_rows = rows, .cols = 256, .depth = 128, .world = world};
}

TEST(SampleRows, HoldsTheEdgesOfEveryBandHoweverFewAreAskedFor) {
  const CallPlan plan(spec_of(1000, 8), 1000);
  for (const std::int64_t most : {0, 5, 40}) {
    const auto rows = sample_rows(plan, 8, most);
    EXPECT_TRUE(std::ranges::is_sorted(rows));
    for (int owner = 0; owner < 8; ++owner) {
      EXPECT_THAT(rows, testing::Contains(plan.band(owner).begin));
      EXPECT_THAT(rows, testing::Contains(plan.band(owner).end - 1));
    }
    EXPECT_LE(std::ssize(rows), std::max<std::int64_t>(most, 16));
  }
}

TEST(SampleRows, IsSpreadEvenly) {
  const CallPlan plan(spec_of(16384, 2), 16384);
  const auto rows = sample_rows(plan, 2, 516);
  for (std::size_t i = 1; i < rows.size(); ++i) EXPECT_LE(rows[i] - rows[i - 1], 32);
}

TEST(SampleRows, TakesAllRowsOfSmallCallsAndNoneOfEmptyOnes) {
  EXPECT_EQ(sample_rows(CallPlan(spec_of(33, 2), 33), 2, 100).size(), 33u);
  EXPECT_TRUE(sample_rows(CallPlan(spec_of(33, 2), 0), 2, 100).empty());
}

// The exact result of a layer of two ranks, rounded once.
struct TwoRanks {
  static constexpr std::int64_t kRows = 40, kCols = 136, kDepth = 256;
  RandomActivations x[2] = {{kRows, kDepth, 1}, {kRows, kDepth, 2}};
  RandomWeight w[2] = {{kCols, kDepth, 3}, {kCols, kDepth, 4}};
  std::vector<Bf16> bias = random_bf16(kCols, 5);
  std::vector<std::int64_t> rows = std::vector<std::int64_t>(kRows);
  std::vector<Bf16> result;

  TwoRanks() {
    std::iota(rows.begin(), rows.end(), 0);
    const ActivationView xs[] = {x[0].view(), x[1].view()};
    const WeightView ws[] = {w[0].view(), w[1].view()};
    for (const double v : reference_rows(xs, ws, bias.data(), rows, 1)) {
      result.push_back(to_bf16(static_cast<float>(v)));
    }
  }
  Output output() const { return {result.data(), kRows, kCols}; }
  Reference reference(Communicator& comm) const {
    const auto rank = static_cast<std::size_t>(comm.rank());
    return Reference(comm, x[rank].view(), rows, w[rank].view(), bias.data(), 1, soon());
  }
};

TEST(Reference, AddsTheRanksSlicesAndTheBiasOnce) {
  const TwoRanks layer;
  run_ranks(2, [&](Communicator& comm) {
    EXPECT_LT(layer.reference(comm).relative_l2(layer.output(), layer.rows), 2e-3);
  });
}

TEST(Reference, SeesOneWrongRowAndNaN) {
  TwoRanks layer;
  run_ranks(2, [&](Communicator& comm) {
    const Reference reference = layer.reference(comm);
    TwoRanks broken;
    for (std::int64_t col = 0; col < TwoRanks::kCols; ++col) {
      broken.result[7 * TwoRanks::kCols + col] = to_bf16(0.0f);
    }
    EXPECT_GT(reference.relative_l2(broken.output(), broken.rows), 0.1);
    broken.result[0] = Bf16{0x7FC0};
    EXPECT_TRUE(std::isnan(reference.relative_l2(broken.output(), broken.rows)));
  });
}

TEST(RowDigests, OneFlippedBitChangesItsRowOnly) {
  TwoRanks layer;
  const auto before = row_digests(layer.output());
  layer.result[9 * TwoRanks::kCols + 135].bits ^= 1;
  const auto after = row_digests(layer.output());
  EXPECT_EQ(first_difference(before, after), 9);
  EXPECT_EQ(first_difference(std::span(before).subspan(10), std::span(after).subspan(10)),
            std::nullopt);
}

TEST(WhyRanksDiffer, NamesTheRankAndItsFirstRow) {
  run_ranks(3, [](Communicator& comm) {
    std::vector<std::uint64_t> rows = {1, 2, 3, 4};
    EXPECT_EQ(why_ranks_differ(comm, rows, soon()), "");
    if (comm.rank() == 2) rows[3] = 0;
    EXPECT_EQ(why_ranks_differ(comm, rows, soon()),
              "row 3 has other bits on rank 2 than on rank 0");
  });
}

TEST(FirstFinding, IsToldToAllRanks) {
  run_ranks(3, [](Communicator& comm) {
    EXPECT_EQ(first_finding(comm, "", soon()), "");
    const std::string own = comm.rank() == 0 ? "" : comm.rank() == 1 ? "one" : "two";
    EXPECT_EQ(first_finding(comm, own, soon()), "one");
  });
}

}  // namespace
}  // namespace rowband::cli
