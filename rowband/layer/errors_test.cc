// What the layer refuses, and how its ranks learn of each other's faults.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <limits>

#include "rowband/layer/test_support.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

using Change = std::function<void(LayerOptions&, Fp8Weight&, std::vector<Bf16>&)>;

// Both ranks get the same error when rank `faulty` changes what it passes to create().
void expect_create_fails(int faulty, ErrorCode code, const std::vector<std::string>& words,
                         const Change& change) {
  const auto all = failures(2, [&](Communicator& comm) {
    LayerOptions options = layer_options(256);
    Fp8Weight weight = to_slice(ExactWeight(256, 256));
    std::vector<Bf16> bias(256);
    if (comm.rank() == faulty) change(options, weight, bias);
    RowParallelLinear::create(comm, test_engine(comm.rank()), weight, bias, options);
  });
  for (const Failure& failure : all) {
    EXPECT_EQ(failure.code, code) << failure.text;
    for (const auto& word : words) EXPECT_THAT(failure.text, HasSubstr(word));
  }
  EXPECT_EQ(all[0].text, all[1].text);
}

TEST(LayerErrors, Q10_BadWeightScalesAreRefusedWithTheirIndex) {
  for (float bad : {-3.4e38f, 0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                    std::numeric_limits<float>::infinity()}) {
    for (int faulty : {0, 1}) {
      expect_create_fails(faulty, ErrorCode::kInvalidArgument,
                          {"rank " + std::to_string(faulty), "[1, 0]"},
                          [=](auto&, auto& w, auto&) { w.scales[2] = w.scales[3] = bad; });
    }
  }
}

TEST(LayerErrors, BadWeightsBiasesAndOptionsAreRefusedOnEveryRank) {
  const auto refused = [](const char* words, const Change& change) {
    expect_create_fails(1, ErrorCode::kInvalidArgument, {"rank 1", words}, change);
  };
  refused("255 elements", [](auto&, auto&, auto& b) { b.resize(255); });
  refused("252, must be a positive multiple of 8", [](auto&, auto& w, auto& b) {
    w.cols = 252;
    b.resize(252);
  });
  refused("slots=0", [](auto& o, auto&, auto&) { o.slots = 0; });
  refused("deadline", [](auto& o, auto&, auto&) { o.deadline = 0s; });
  refused("deadline", [](auto& o, auto&, auto&) { o.deadline = -1s; });
  refused("min_rows=-1", [](auto& o, auto&, auto&) { o.policy.min_rows = -1; });
  refused("min_fill=1.5", [](auto& o, auto&, auto&) { o.policy.min_fill = 1.5; });
  refused("min_fill=nan", [](auto& o, auto&, auto&) {
    o.policy.min_fill = std::numeric_limits<double>::quiet_NaN();
  });
}

TEST(LayerErrors, R06_RanksWithDifferentSettingsAreToldWhichOne) {
  const auto differ = [](const char* name, const Change& change) {
    expect_create_fails(1, ErrorCode::kDisagreement, {name}, change);
  };
  differ("fuse: rank 0 has on, rank 1 has off",
         [](auto& o, auto&, auto&) { o.policy.enabled = false; });
  differ("min_rows: rank 0 has 64, rank 1 has 65",
         [](auto& o, auto&, auto&) { o.policy.min_rows = 65; });
  differ("min_fill", [](auto& o, auto&, auto&) { o.policy.min_fill = 0.5 + 1e-12; });
  differ("max_rows", [](auto& o, auto&, auto&) { o.max_rows = 257; });
  differ("wire", [](auto& o, auto&, auto&) { o.wire = Wire::kFp8; });
  differ("transport", [](auto& o, auto&, auto&) { o.transport = Transport::kCopyEngine; });
  differ("gather scale", [](auto& o, auto&, auto&) { o.gather_scale = GatherScale::kPerRow; });
  differ("chunks", [](auto& o, auto&, auto&) { o.chunks = 5; });
  differ("slots", [](auto& o, auto&, auto&) { o.slots = 3; });
  differ("deadline", [](auto& o, auto&, auto&) { o.deadline = 61s; });
  differ("debug check", [](auto& o, auto&, auto&) { o.debug_check = true; });
  differ("activation scales",
         [](auto& o, auto&, auto&) { o.activation_scales = ScaleFormat::kUe8m0; });
  differ("bias", [](auto&, auto&, auto& b) { b.clear(); });
  differ("N: rank 0 has 256, rank 1 has 128", [](auto&, auto& w, auto& b) {
    w = to_slice(ExactWeight(128, 256));
    b.resize(128);
  });
  differ("K per rank: rank 0 has 256, rank 1 has 128",
         [](auto&, auto& w, auto&) { w = to_slice(ExactWeight(256, 128)); });
}

// The same arguments are refused on both paths, by every rank alike, and the layer goes on.
TEST(LayerErrors, R11_BadArgumentsAreRefusedOnBothPathsAndTheLayerGoesOn) {
  for (std::int64_t rows : {100, 10}) {  // fused, declined
    run_ranks(2, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 64, 128, layer_options(256));
      const Output fused = forward_exact(comm, *layer, 100, 1);
      const Output base = forward_exact(comm, *layer, 10, 2);
      std::vector<Bf16> memory(1 << 20);
      Bf16* const x = memory.data() + memory.size() / 2;  // apart from the results
      const auto refused = [&](const char* words, const Bf16* from, std::int64_t m,
                               std::int64_t stride, const Bf16* out) {
        try {
          layer->forward(from, m, stride, const_cast<Bf16*>(out));
          ADD_FAILURE() << "accepted: " << words;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
          EXPECT_THAT(error.what(), HasSubstr(words));
        }
      };
      refused("M=-1", x, -1, 128, nullptr);
      refused("x is null", nullptr, rows, 128, nullptr);
      refused("x_row_stride=127: must be at least K=128", x, rows, 127, nullptr);
      refused("out overlaps x", x, rows, 128, x);
      refused("out overlaps x", x, rows, 130, x + (rows - 1) * 130 + 127);
      refused("out overlaps x", x + rows * 64 - 1, rows, 128, x);
      refused("earlier result", x, rows, 128, fused.data);
      refused("earlier result", x, rows, 128, fused.data + 99 * 64 + 63);
      refused("earlier result", x, rows, 128, base.data);
      refused("earlier result", x, rows, 128, base.data + 10 * 64 - 1);
      // Neighbours, and a result as the next input, are no overlap.
      forward_exact(comm, *layer, rows, 3, x);
      const auto input = exact_bf16(rows, 128, comm.rank(), 4);
      std::copy(input.begin(), input.end(), x);
      const Output y = layer->forward(x, rows, 128, x + rows * 128);
      EXPECT_EQ(exact_difference(y, rows, 128, 2, 4), "");
    });
  }
}

TEST(LayerErrors, AResultMayBeTheNextInput) {
  for (std::int64_t rows : {100, 10}) {
    run_ranks(2, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 128, 128, layer_options(256));
      const Output y = forward_exact(comm, *layer, rows, 1);
      const std::vector<Bf16> copy(y.data, y.data + rows * 128);
      const Output chained = layer->forward(y.data, rows, 128);
      const std::vector<Bf16> got(chained.data, chained.data + rows * 128);
      const Output want = layer->forward(copy.data(), rows, 128);
      EXPECT_EQ(std::vector<Bf16>(want.data, want.data + rows * 128), got);
    });
  }
}

TEST(LayerErrors, ARankThatRefusesItsArgumentsDoesNotKeepItsPeersWaiting) {
  const auto begin = std::chrono::steady_clock::now();
  const auto all = failures(2, [](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 64, 128, layer_options(256));
    const std::vector<Bf16> x(100 * 128);
    layer->forward(comm.rank() == 1 ? nullptr : x.data(), 100, 128);
  });
  EXPECT_EQ(all[0].code, ErrorCode::kDisagreement);
  EXPECT_THAT(all[0].text, HasSubstr("rank 1 refused"));
  EXPECT_EQ(all[1].code, ErrorCode::kInvalidArgument);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(LayerErrors, D03_DifferentMIsNamedWithBothNumbersOnBothPaths) {
  for (const auto& [zero, one] : {std::pair{100, 200}, {10, 20}}) {  // fused, declined
    const auto all = failures(2, [&, zero = zero, one = one](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 64, 128, layer_options(256));
      const std::int64_t rows = comm.rank() == 0 ? zero : one;
      const auto x = exact_bf16(rows, 128, comm.rank(), 1);
      layer->forward(x.data(), rows, 128);
    });
    const int unit = zero == 10 ? 64 : 1;  // the all-reduce counts elements
    for (const Failure& failure : all) {
      EXPECT_EQ(failure.code, ErrorCode::kDisagreement);
      EXPECT_THAT(failure.text, AllOf(HasSubstr(std::to_string(zero * unit)),
                                      HasSubstr(std::to_string(one * unit))));
    }
  }
}

TEST(LayerErrors, D03_OneRankFusesWhereTheOtherDeclinesIsAnErrorWithinTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<ErrorCode> codes(2, ErrorCode::kInternal);
  std::latch both(2);  // a rank that leaves would end its peer's wait too
  run_ranks(2, [&](Communicator& comm) {
    LayerOptions options = layer_options(512);
    options.deadline = 500ms;
    const auto layer = make_exact_layer(comm, 64, 128, options);
    const std::int64_t rows = comm.rank() == 0 ? 512 : 16;
    const auto x = exact_bf16(rows, 128, comm.rank(), 1);
    try {
      layer->forward(x.data(), rows, 128);
    } catch (const Error& error) {
      codes[comm.rank()] = error.code();
    }
    both.arrive_and_wait();
    // There is no local fallback.
    EXPECT_THROW(layer->forward(x.data(), rows, 128), Error);
  });
  EXPECT_EQ(codes[0], ErrorCode::kDeadline);
  EXPECT_EQ(codes[1], ErrorCode::kDeadline);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(LayerErrors, AFailedFusedCallIsNotServedByTheBasePath) {
  const auto all = failures(2, [](Communicator& comm) {
    auto faults = std::make_shared<FaultHooks>();
    if (comm.rank() == 1) faults->throw_in_call = 5;
    LayerOptions options = layer_options(256);
    options.faults = faults;
    const auto layer = make_exact_layer(comm, 64, 128, options);
    forward_exact(comm, *layer, 100, 1);
    EXPECT_THROW(forward_exact(comm, *layer, 100, 2), Error);
    EXPECT_EQ(layer->verdict(100).decision, Decision::kFuse);  // no rank may decide alone
    forward_exact(comm, *layer, 100, 3);
  });
  for (const Failure& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kPoisoned);
    EXPECT_THAT(failure.text, HasSubstr("fault hook"));
  }
}

}  // namespace
}  // namespace rowband
