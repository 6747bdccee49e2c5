// The op and the layer between processes; run by mpirun, every rank runs every test in the same
// order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "rowband/comm/mpi.h"
#include "rowband/layer/row_parallel_linear.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/operands.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// One for all tests, as a program would have.
Communicator& world() {
  static const auto comm = make_mpi_world_communicator();
  return *comm;
}

std::unique_ptr<GemmAllReduce> make(const GemmAllReduceOptions& options) {
  return GemmAllReduce::create(world(), test_engine(world().rank()), options);
}

// `action` throws Error(code) whose text holds all of `words`.
void expect_error(ErrorCode code, const std::vector<std::string>& words,
                  const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const auto& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

TEST(MpiOp, W01_ExactInEveryMode) {
  for (const auto& options : all_modes(exact_options(700, 264, 256))) {
    const auto op = make(options);
    const ExactWeight w(264, 256);
    std::int64_t call = 0;
    for (std::int64_t rows : {700, 1, 33, 0, 256, 699}) run_exact(world(), *op, w, rows, ++call);
  }
}

TEST(MpiOp, R01_ManyCallsOfAlternatingShapes) {
  for (const auto& options : all_modes(exact_options(512, 64, 128))) {
    const auto op = make(options);
    const ExactWeight w(64, 128);
    std::minstd_rand same_on_all_ranks(9);
    for (int call = 1; call <= 300; ++call) {
      run_exact(world(), *op, w, call % 5 == 0 ? 512 : same_on_all_ranks() % 100, call);
    }
  }
}

TEST(MpiOp, R13_ARandomDelayBeforeEveryHandOverChangesNothing) {
  auto faults = std::make_shared<FaultHooks>();
  faults->jitter = std::chrono::microseconds(200);
  for (auto options : all_modes(exact_options(600, 64, 128))) {
    options.faults = faults;
    const auto op = make(options);
    const ExactWeight w(64, 128);
    for (int call = 1; call <= 20; ++call) {
      run_exact(world(), *op, w, call % 2 == 0 ? 600 : 40, call);
    }
  }
}

TEST(MpiOp, L05_TwoOpsInOneProcessDoNotMix) {
  const auto one = make(exact_options(64, 64, 128));
  const auto two = make(exact_options(300, 64, 128));
  const ExactWeight w(64, 128);
  for (int call = 1; call <= 50; ++call) {
    run_exact(world(), *one, w, 1 + call % 64, call);
    run_exact(world(), *two, w, call % 300, call + 500);
  }
}

TEST(MpiOp, D03_DifferentMIsNamedWithBothNumbersAndANewOpWorks) {
  const int last = world().size() - 1;
  for (const auto& options : all_modes(exact_options(512, 64, 128))) {
    const auto op = make(options);
    const std::int64_t rows = world().rank() == last ? 384 : 256;
    const ExactActivations x(rows, 128, world().rank(), 1);
    const ExactWeight w(64, 128);
    std::string text;
    try {
      op->run(x.view(), w.view());
    } catch (const Error& error) {
      text = error.what();
    }
    EXPECT_THAT(text,
                AllOf(HasSubstr("256 on rank"), HasSubstr("384 on rank " + std::to_string(last))));
    expect_error(ErrorCode::kPoisoned, {"256 on rank"}, [&] { op->run(x.view(), w.view()); });
  }
  run_exact(world(), *make(exact_options(512, 64, 128)), ExactWeight(64, 128), 512, 1);
}

TEST(MpiOp, D03_DifferentOptionsAreNamedAtConstruction) {
  auto options = exact_options(512, 64, 128);
  if (world().rank() == 1) options.chunks = 3;
  expect_error(ErrorCode::kDisagreement, {"chunks: rank 0 has 4, rank 1 has 3"},
               [&] { make(options); });
}

TEST(MpiOp, D01_R02_AFaultOnOneRankFailsTheConstructionOnAll) {
  for (const bool allocation : {true, false}) {
    auto options = exact_options(512, 64, 128);
    auto faults = std::make_shared<FaultHooks>();
    if (world().rank() == 1) {
      faults->fail_window_allocation = allocation;
      if (!allocation) faults->skip_transfers_from = 2;
    }
    options.faults = faults;
    expect_error(allocation ? ErrorCode::kOutOfMemory : ErrorCode::kCorrupted,
                 {allocation ? "rank 1" : "self-test"}, [&] { make(options); });
  }
}

TEST(MpiOp, ARankThatRefusesItsArgumentsDoesNotKeepItsPeersWaiting) {
  const auto op = make(exact_options(512, 64, 128));
  const ExactWeight w(64, 128);
  ExactActivations x(512, 128, world().rank(), 1);
  ActivationView view = x.view();
  if (world().rank() == 1) view.codes = nullptr;
  std::string text;
  try {
    op->run(view, w.view());
  } catch (const Error& error) {
    text = error.what();
  }
  EXPECT_THAT(text, HasSubstr(world().rank() == 1 ? "null" : "rank 1 refused"));
  world().barrier(Deadline::after(std::chrono::seconds(30)));
}

TEST(MpiOp, L07_OpsComeAndGo) {
  const ExactWeight w(64, 128);
  for (int i = 0; i < 30; ++i) run_exact(world(), *make(exact_options(100, 64, 128)), w, 1 + i, i);
}

Fp8Weight slice(const ExactWeight& w) {
  return {.cols = w.cols,
          .depth = w.depth,
          .depth_begin = 0,
          .total_depth = w.depth,
          .codes = w.codes,
          .scales = w.scales};
}

void forward_exact(RowParallelLinear& layer, std::int64_t rows, std::int64_t call) {
  const std::int64_t depth = layer.weight().depth;
  std::vector<Bf16> x(static_cast<std::size_t>(rows * depth));
  for (std::int64_t i = 0; i < rows * depth; ++i) {
    x[i] = to_bf16(static_cast<float>(exact_x(world().rank(), i / depth, call)));
  }
  const Output y = layer.forward(x.data(), rows, depth);
  EXPECT_EQ(exact_difference(y, rows, depth, world().size(), call), "") << "M=" << rows;
}

TEST(MpiLayer, D04_FusedAndDeclinedCallsAreExact) {
  for (const auto& mode : all_modes({})) {
    LayerOptions options;
    options.max_rows = 512;
    options.policy.enabled = true;
    options.policy.min_rows = 64;
    options.wire = mode.wire;
    options.transport = mode.transport;
    options.gather_scale = mode.gather_scale;
    const auto layer = RowParallelLinear::create(world(), test_engine(world().rank()),
                                                 slice(ExactWeight(72, 256)), {}, options);
    std::int64_t call = 0;
    for (std::int64_t rows : {512, 10, 513, 0, 256, 63, 64}) forward_exact(*layer, rows, ++call);
    EXPECT_EQ(layer->counters().of(Decision::kTooManyRows), 1);
    EXPECT_EQ(layer->counters().of(Decision::kTooFewRows), 3);
    EXPECT_GE(layer->counters().of(Decision::kFuse), 2);
  }
}

TEST(MpiLayer, O01_NoRoomOnOneRankDeclinesOnAll) {
  LayerOptions options;
  options.policy.enabled = true;
  options.policy.min_rows = 64;
  auto faults = std::make_shared<FaultHooks>();
  if (world().rank() == 1) faults->available_bytes = 4096;
  options.faults = faults;
  const auto layer = RowParallelLinear::create(world(), test_engine(world().rank()),
                                               slice(ExactWeight(72, 128)), {}, options);
  EXPECT_EQ(layer->verdict(256).decision, Decision::kUnavailable);
  EXPECT_THAT(layer->verdict(256).reason, AllOf(HasSubstr("rank 1"), HasSubstr("4096 bytes")));
  forward_exact(*layer, 256, 1);
}

}  // namespace
}  // namespace rowband
