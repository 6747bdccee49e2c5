#include "rowband/cli/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "rowband/cli/bench_report.h"
#include "rowband/cli/random_operands.h"
#include "rowband/comm/threads.h"

namespace rowband::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kRows = 70, kCols = 256, kDepth = 128;

// A fused arm whose results are tampered with on their way out.
class TamperedArm final : public Arm {
 public:
  using Tamper = std::function<void(std::vector<Bf16>&, int call)>;
  TamperedArm(std::unique_ptr<Arm> arm, Tamper tamper)
      : Arm(arm->spec()), arm_(std::move(arm)), tamper_(std::move(tamper)) {}

  Output run(const ActivationView& x, Timeline* timeline) override {
    const Output result = arm_->run(x, timeline);
    values_.assign(result.data, result.data + result.rows * result.cols);
    tamper_(values_, call_++);
    return {values_.data(), result.rows, result.cols};
  }
  std::int64_t fused_calls() const override { return counts ? arm_->fused_calls() : 0; }
  std::optional<std::int64_t> gemm_end_ns() const override { return std::nullopt; }

  bool counts = true;

 private:
  const std::unique_ptr<Arm> arm_;
  const Tamper tamper_;
  std::vector<Bf16> values_;
  int call_ = 0;
};

// base and a tampered bf16-direct on two ranks; returns rank 0's results.
std::vector<ArmResult> compare_with(const std::function<TamperedArm::Tamper(int rank)>& tamper,
                                    bool counts = true) {
  std::vector<ArmResult> results;
  run_ranks(2, [&](Communicator& comm) {
    const std::shared_ptr<Engine> engine =
        make_engine(EngineKind::kHost, comm.rank(), {.threads = 1, .gemm_kernel = ""});
    const Fp8Weight weight = random_weight_slice(0, kCols, 2 * kDepth, comm.rank(), 2);
    LayerOptions options;
    options.max_rows = kRows;
    std::vector<QuantizedActivations> sets;
    for (int set = 0; set < 3; ++set) {
      const auto x = random_activations(0, set, kRows, weight.depth_begin, kDepth);
      sets.emplace_back(*engine, x.data(), kRows, kDepth, kDepth);
    }
    std::vector<std::unique_ptr<Arm>> arms;
    arms.push_back(make_arm(comm, engine, parse_arm("base"), weight, {}, options));
    auto tampered = std::make_unique<TamperedArm>(
        make_arm(comm, engine, parse_arm("bf16-direct"), weight, {}, options), tamper(comm.rank()));
    tampered->counts = counts;
    arms.push_back(std::move(tampered));
    auto own = compare_arms(comm, *engine, weight, {}, sets, arms, {.repeats = 5});
    if (comm.rank() == 0) results = std::move(own);
  });
  return results;
}

TamperedArm::Tamper honest(int) {
  return [](std::vector<Bf16>&, int) {};
}

TEST(Compare, RightArmsHaveOneTimePerRepetition) {
  const auto results = compare_with(honest);
  for (const ArmResult& result : results) {
    EXPECT_EQ(result.wrong, "");
    EXPECT_TRUE(result.same_bits);
    EXPECT_EQ(result.ms.size(), 5u);
    EXPECT_EQ(result.skew_ms.size(), 5u);
  }
  EXPECT_EQ(results[0].gemm_ms.size(), 5u);
  EXPECT_NEAR(results[0].gemm_ms[0] + results[0].all_reduce_ms[0], results[0].ms[0],
              0.02 * results[0].ms[0] + 0.01);
}

TEST(Compare, AWrongResultHasNoTimes) {
  const auto results = compare_with([](int) -> TamperedArm::Tamper {
    return [](std::vector<Bf16>& y, int) { std::fill_n(y.begin(), kCols, to_bf16(0.0f)); };
  });
  EXPECT_THAT(results[1].wrong, HasSubstr("relative L2"));
  EXPECT_TRUE(results[1].ms.empty());
  EXPECT_EQ(results[0].wrong, "");
}

TEST(Compare, AnArmThatGoesWrongWhileItIsTimedLosesItsTimes) {
  const auto results = compare_with([](int) -> TamperedArm::Tamper {
    return [](std::vector<Bf16>& y, int call) {
      if (call >= 3 + 5) y[5] = Bf16{0x7FC0};  // after the checks before, and the repetitions
    };
  });
  EXPECT_THAT(results[1].wrong, HasSubstr("nan"));
  EXPECT_TRUE(results[1].ms.empty());
}

TEST(Compare, RanksThatDifferInOneBitAreWrong) {
  const auto results = compare_with([](int rank) -> TamperedArm::Tamper {
    return [rank](std::vector<Bf16>& y, int) { y[6 * kCols].bits ^= rank == 1 ? 1 : 0; };
  });
  EXPECT_EQ(results[1].wrong, "row 6 has other bits on rank 1 than on rank 0");
  EXPECT_FALSE(results[1].same_bits);
}

// A path that falls back silently would be timed as if it were the fused one.
TEST(Compare, AFusedArmThatDoesNotRunFusedIsWrong) {
  const auto results = compare_with(honest, /*counts=*/false);
  EXPECT_THAT(results[1].wrong, HasSubstr("the fused path began 0 calls"));
  EXPECT_TRUE(results[1].ms.empty());
}

TEST(BenchReport, PrintsNoTimeOfAWrongArm) {
  ShapeResult shape{kRows, kCols, kDepth, 2, 0.5, {}};
  ArmResult base, wrong;
  base.spec = parse_arm("base");
  base.ms = {2, 2, 2};
  base.skew_ms = {0, 0, 0};
  wrong.spec = parse_arm("fp8-direct");
  wrong.wrong = "lost a row";
  shape.arms = {base, wrong};
  const std::string table = sweep_markdown({shape});
  EXPECT_THAT(table, HasSubstr("| base       | 2.000 |"));
  EXPECT_THAT(table, HasSubstr("| fp8-direct | wrong |         |"));
  EXPECT_THAT(table, HasSubstr("lost a row"));
  EXPECT_EQ(sweep_failures({shape}), "1 result is wrong");

  const auto json = sweep_json({}, {shape});
  const auto& arms = json["results"][0]["arms"];
  EXPECT_EQ(arms[0]["ms"]["median"], 2.0);
  EXPECT_EQ(arms[1]["error"], "lost a row");
  EXPECT_FALSE(arms[1].contains("ms"));
}

}  // namespace
}  // namespace rowband::cli
