#include "rowband/cli/verify_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "rowband/cli/ranks.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cli {
namespace {

using testing::HasSubstr;

enum Which { kReference, kRanks, kRepetitions, kBatchInvariance, kOnes };

// Verifies two calls of a layer of three ranks; tamper() may change what this rank remembers of
// them. Returns rank 0's checks, which every rank has to share.
std::vector<Check> verify_with(const LayerOptions& options,
                               const std::function<void(LayerRun&, std::vector<Bf16>&)>& tamper,
                               EngineKind kind = EngineKind::kHost) {
  InputFlags flags;
  flags.rows = 150;
  flags.cols = 256;
  flags.depth = 128;
  const LayerInput input(flags, 3);
  std::vector<std::vector<Check>> checks(3);
  run_ranks(3, [&](Communicator& comm) {
    EngineFlags engine_flags;
    engine_flags.asked = kind;
    engine_flags.threads = 1;
    const auto engine =
        make_rank_engine(comm, engine_flags, Deadline::after(std::chrono::seconds(60)));
    const ActivationSlice x = input.activations(comm.rank());
    const EngineActivations engine_x =
        to_engine(*engine, x.data, input.rows(), input.depth(), x.row_stride);
    const std::vector<Bf16> bias;
    const auto layer =
        RowParallelLinear::create(comm, engine, input.weight(comm.rank()), bias, options);
    LayerRun run{comm, engine, input, options, *layer, x, engine_x, bias, 1, {}};
    Output result;
    std::vector<Bf16> storage;
    for (int call = 0; call < 2; ++call) {
      const Output y = layer->forward(engine_x.data, input.rows(), engine_x.row_stride);
      layer->finish();
      result = to_host(*engine, y, storage);
      run.call_rows.push_back(row_digests(result));
    }
    std::vector<Bf16> values(result.data, result.data + result.rows * result.cols);
    tamper(run, values);
    checks[static_cast<std::size_t>(comm.rank())] =
        verify_layer(run, {values.data(), result.rows, result.cols});
  });
  for (const auto& other : checks) {
    for (std::size_t i = 0; i < other.size(); ++i) {
      EXPECT_EQ(other[i].ok, checks[0][i].ok);
      EXPECT_EQ(other[i].text, checks[0][i].text);
    }
  }
  return checks[0];
}

LayerOptions fused(Wire wire = Wire::kBf16) {
  LayerOptions options;
  options.max_rows = 150;
  options.policy = {.enabled = true, .min_rows = 0, .min_fill = 0};
  options.wire = wire;
  return options;
}

std::vector<bool> verdicts(const std::vector<Check>& checks) {
  std::vector<bool> ok;
  for (const Check& check : checks) ok.push_back(check.ok);
  return ok;
}

TEST(VerifyLayer, RightResultsPassEveryCheck) {
  for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
    const auto checks = verify_with(fused(wire), [](LayerRun&, std::vector<Bf16>&) {});
    EXPECT_THAT(verdicts(checks), testing::ElementsAre(true, true, true, true, true));
  }
}

TEST(CudaVerifyLayer, RightResultsPassEveryCheckAndAWrongBitDoesNot) {
  if (default_engine() != EngineKind::kCuda) GTEST_SKIP() << "needs a Hopper GPU, there is none";
  const auto right = verify_with(
      fused(), [](LayerRun&, std::vector<Bf16>&) {}, EngineKind::kCuda);
  EXPECT_THAT(verdicts(right), testing::ElementsAre(true, true, true, true, true));
  const auto wrong = verify_with(
      fused(),
      [](LayerRun& run, std::vector<Bf16>&) {
        if (run.comm.rank() == 1) run.call_rows[1][7] ^= 1;
      },
      EngineKind::kCuda);
  EXPECT_THAT(verdicts(wrong), testing::ElementsAre(true, false, false, true, true));
}

TEST(VerifyLayer, AWrongRowOnOneRankFailsTheReference) {
  const auto checks = verify_with(fused(), [](LayerRun& run, std::vector<Bf16>& values) {
    if (run.comm.rank() == 2) std::fill_n(values.begin() + 149 * 256, 256, to_bf16(9.0f));
  });
  EXPECT_THAT(verdicts(checks), testing::ElementsAre(false, true, true, true, true));
  EXPECT_THAT(checks[kReference].text, HasSubstr("exceeds 3e-03"));
}

TEST(VerifyLayer, OneBitOnOneRankInTheLastCall) {
  const auto checks = verify_with(fused(), [](LayerRun& run, std::vector<Bf16>&) {
    if (run.comm.rank() == 1) run.call_rows[1][7] ^= 1;
  });
  EXPECT_THAT(verdicts(checks), testing::ElementsAre(true, false, false, true, true));
  EXPECT_THAT(checks[kRanks].text, HasSubstr("row 7 has other bits on rank 1"));
  EXPECT_THAT(checks[kRepetitions].text, HasSubstr("rank 1: row 7 of call 2"));
}

TEST(VerifyLayer, ARowWhoseBitsDependOnM) {
  const auto checks = verify_with(fused(), [](LayerRun& run, std::vector<Bf16>&) {
    for (auto& rows : run.call_rows) rows[149] ^= 1;
  });
  EXPECT_FALSE(checks[kBatchInvariance].ok);
  EXPECT_THAT(checks[kBatchInvariance].text, HasSubstr("row 149 has other bits with M=65"));
}

// The transport stops moving bytes after the self-test and the first two calls: what arrives is
// stale. Every layer made meanwhile starts its own count.
TEST(VerifyLayer, ATransportThatStopsMovingBytes) {
  LayerOptions options = fused();
  FaultHooks faults;
  faults.skip_transfers_from = 3 + 2 + 1;  // self-test calls, the two calls, then
  options.faults = std::make_shared<const FaultHooks>(faults);
  const auto checks = verify_with(options, [](LayerRun&, std::vector<Bf16>&) {});
  EXPECT_TRUE(checks[kReference].ok);
  EXPECT_FALSE(checks[kBatchInvariance].ok);
}

}  // namespace
}  // namespace rowband::cli
