// When the fused path says no: the base path serves the call, in full, on every rank alike, and
// what is said about it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rowband/layer/test_support.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Calls of the op that forward() made, and the decision that it counted.
struct Served {
  std::int64_t op_calls = 0;
  Decision decision = Decision::kFuse;
};

Served serve(Communicator& comm, RowParallelLinear& layer, std::int64_t rows, std::int64_t call) {
  const LayerCounters before = layer.counters();
  const std::int64_t calls = layer.fused() == nullptr ? 0 : layer.fused()->calls();
  forward_exact(comm, layer, rows, call);
  Served served;
  served.op_calls = (layer.fused() == nullptr ? 0 : layer.fused()->calls()) - calls;
  int counted = 0;
  for (int i = 0; i < kDecisions; ++i) {
    const auto decision = static_cast<Decision>(i);
    const auto more = layer.counters().of(decision) - before.of(decision);
    if (more != 0) served.decision = decision;
    counted += static_cast<int>(more);
  }
  EXPECT_EQ(counted, 1) << "a call is counted once";
  return served;
}

TEST(Declines, C05_WhatThePolicySaysIsWhatForwardDoes) {
  for (Wire wire : {Wire::kBf16, Wire::kFp8}) {
    for (int world : {2, 3}) {
      LayerOptions options = layer_options(700);
      options.wire = wire;
      options.policy = {.enabled = true, .min_rows = 48, .min_fill = 0.75};
      run_ranks(world, [&](Communicator& comm) {
        const auto layer = make_exact_layer(comm, 64, 128, options);
        bool seen[kDecisions] = {};
        std::int64_t call = 0;
        for (std::int64_t rows : {0,  1,   32,  47,  48,  49,  63,  64,  65,  95,  96,
                                  97, 255, 256, 257, 511, 512, 513, 699, 700, 701, 702}) {
          const Verdict said = decide(options.policy, layer->fused()->spec(), rows);
          const Served served = serve(comm, *layer, rows, ++call);
          EXPECT_EQ(served.decision, said.decision) << "M=" << rows;
          EXPECT_EQ(served.op_calls, said.decision == Decision::kFuse ? 1 : 0) << "M=" << rows;
          EXPECT_EQ(layer->verdict(rows).decision, said.decision);
          EXPECT_EQ(layer->verdict(rows).reason, said.reason);
          seen[static_cast<int>(said.decision)] = true;
        }
        for (Decision decision :
             {Decision::kFuse, Decision::kTooManyRows, Decision::kTooFewRows, Decision::kLowFill}) {
          EXPECT_TRUE(seen[static_cast<int>(decision)]) << decision_name(decision);
        }
      });
    }
  }
}

TEST(Declines, D04_ADeclinedCallStillSumsOverTheRanks) {
  for (int world : {1, 2, 3, 4, 8}) {
    LayerOptions off = layer_options(512);
    off.policy.enabled = false;
    LayerOptions few = layer_options(512);
    few.policy.min_rows = 513;
    for (const LayerOptions& options : {off, few}) {
      run_ranks(world, [&](Communicator& comm) {
        const auto layer = make_exact_layer(comm, 136, 128, options);
        std::int64_t call = 0;
        for (std::int64_t rows : {512, 1, 100, 600}) {
          const Served served = serve(comm, *layer, rows, ++call);
          EXPECT_NE(served.decision, Decision::kFuse);
          EXPECT_EQ(served.op_calls, 0);
        }
      });
    }
  }
}

TEST(Declines, O02_MoreRowsThanTheWindowHoldsAreExact) {
  LayerOptions options = layer_options(256);
  run_ranks(3, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 64, 128, options);
    EXPECT_EQ(serve(comm, *layer, 256, 1).decision, Decision::kFuse);
    EXPECT_EQ(serve(comm, *layer, 257, 2).decision, Decision::kTooManyRows);
    EXPECT_EQ(serve(comm, *layer, 3000, 3).decision, Decision::kTooManyRows);
    EXPECT_THAT(layer->verdict(3000).reason, AllOf(HasSubstr("M=3000"), HasSubstr("256")));
    EXPECT_EQ(serve(comm, *layer, 256, 4).decision, Decision::kFuse);
  });
}

// Makes layers whose op cannot be made, as `change` orders on rank 1 alone.
void expect_unavailable(const char* words, const std::function<void(FaultHooks&)>& change) {
  const LogCapture log;
  run_ranks(3, [&](Communicator& comm) {
    auto faults = std::make_shared<FaultHooks>();
    if (comm.rank() == 1) change(*faults);
    LayerOptions options = layer_options(256);
    options.faults = faults;
    const auto layer = make_exact_layer(comm, 64, 128, options);
    EXPECT_EQ(layer->fused(), nullptr);
    const Verdict verdict = layer->verdict(256);
    EXPECT_EQ(verdict.decision, Decision::kUnavailable);
    EXPECT_THAT(verdict.reason, AllOf(HasSubstr("rank 1"), HasSubstr(words)));
    for (int call = 1; call <= 3; ++call) {
      EXPECT_EQ(serve(comm, *layer, 256, call).decision, Decision::kUnavailable);
    }
    EXPECT_EQ(layer->counters().of(Decision::kUnavailable), 3);
  });
  const auto lines = log.lines_with("unavailable");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("rank 1"), HasSubstr(words)));
}

TEST(Declines, O01_TooLittleMemoryOnOneRankDeclinesOnAll) {
  expect_unavailable("4096 bytes are free", [](FaultHooks& f) { f.available_bytes = 4096; });
}

TEST(Declines, D01_AFailedAllocationOnOneRankDeclinesOnAll) {
  expect_unavailable("fault hook", [](FaultHooks& f) { f.fail_window_allocation = true; });
}

TEST(Declines, R02_ATransportThatMovesNothingDeclinesOnAll) {
  for (std::int64_t from : {1, 2}) {
    expect_unavailable("self-test", [=](FaultHooks& f) { f.skip_transfers_from = from; });
  }
}

TEST(Declines, AnOpThatCannotBeMadeFromTheseOptionsDeclines) {
  LayerOptions options = layer_options(256);
  options.chunks = 65;
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 64, 128, options);
    EXPECT_EQ(serve(comm, *layer, 256, 1).decision, Decision::kUnavailable);
    EXPECT_THAT(layer->verdict(256).reason, HasSubstr("chunks=65"));
  });
  EXPECT_EQ(log.lines_with("chunks=65").size(), 1u);
}

TEST(Declines, D05_EachReasonIsLoggedOnceAndCountedAlways) {
  LayerOptions options = layer_options(256);
  options.policy.min_fill = 0.75;
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 8, 128, options);
    for (std::int64_t call = 0; call < 100; ++call) {
      forward_exact(comm, *layer, 257 + call % 2, call);
      forward_exact(comm, *layer, 63 - call % 2, call);
      forward_exact(comm, *layer, 65 + call % 2, call);
    }
    for (int i = 0; i < 7; ++i) forward_exact(comm, *layer, 256, i);
    EXPECT_EQ(layer->counters().of(Decision::kTooManyRows), 100);
    EXPECT_EQ(layer->counters().of(Decision::kTooFewRows), 100);
    EXPECT_EQ(layer->counters().of(Decision::kLowFill), 100);
    EXPECT_EQ(layer->counters().of(Decision::kFuse), 7);
    EXPECT_EQ(layer->counters().of(Decision::kDisabled), 0);
    EXPECT_EQ(layer->counters().of(Decision::kUnavailable), 0);
  });
  EXPECT_EQ(log.lines_with("declined").size(), 3u);
  const auto expect_once = [&](const char* name, const char* reason) {
    const auto lines = log.lines_with(name);
    ASSERT_EQ(lines.size(), 1u) << name;
    EXPECT_THAT(lines[0], HasSubstr(reason));
  };
  expect_once("too_many_rows", "M=257 rows are more than the capacity of 256 rows");
  expect_once("too_few_rows", "M=63 rows are fewer than min_rows=64 rows");
  expect_once("low_fill", "M=65 rows fill 0.508 of the bands");
}

}  // namespace
}  // namespace rowband
