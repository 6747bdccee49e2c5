// What a call gives: exactness over shapes, worlds, wires and transports; accuracy; bits.
#include "rowband/op/gemm_all_reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "rowband/base/error.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/operands.h"
#include "rowband/testing/random_group.h"

namespace rowband {
namespace {

using testing::HasSubstr;

TEST(GemmAllReduce, W01_N03_ExactForEveryWorldWireAndTransport) {
  for (int world = 1; world <= 8; ++world) {
    for (const auto& options : all_modes(exact_options(200, 136, 128))) {
      with_ops(world, options, [](Communicator& comm, GemmAllReduce& op) {
        const ExactWeight w(136, 128);
        std::int64_t call = 0;
        for (std::int64_t rows : {200, 1, 33, 0, 128}) {
          ASSERT_TRUE(op.supports(rows));
          run_exact(comm, op, w, rows, ++call);
        }
      });
    }
  }
}

TEST(GemmAllReduce, ChunksThatAreNotGivenAreTheEnginesBest) {
  const auto planner = make_planner(EngineKind::kHost, {});
  GemmAllReduceOptions options = exact_options(200, 136, 128);
  options.chunks.reset();
  EXPECT_EQ(GemmAllReduce::plan_spec(*planner, options, 2).chunks,
            planner->best_chunks(options.transport, options.wire));
  options.chunks = 3;
  EXPECT_EQ(GemmAllReduce::plan_spec(*planner, options, 2).chunks, 3);
}

TEST(GemmAllReduce, W03_TailsOfRowsAndColumns) {
  for (const auto& [world, cols] : {std::pair{8, 128}, {2, 128}, {8, 8}, {3, 264}}) {
    for (const auto& options : all_modes(exact_options(16, cols, 128))) {
      with_ops(world, options, [&, cols = cols](Communicator& comm, GemmAllReduce& op) {
        const ExactWeight w(cols, 128);
        std::int64_t call = 0;
        for (std::int64_t rows : {1, 3, 7, 9, 16}) run_exact(comm, op, w, rows, ++call);
      });
    }
  }
}

TEST(GemmAllReduce, M08_K01_K03_GridOfShapes) {
  for (int world : {2, 4}) {
    for (std::int64_t cols : {128, 384, 1024}) {
      for (std::int64_t depth : {128, 256, 384}) {
        with_ops(world, exact_options(600, cols, depth),
                 [&](Communicator& comm, GemmAllReduce& op) {
                   const ExactWeight w(cols, depth);
                   std::int64_t call = 0;
                   for (std::int64_t rows : {128, 256, 384, 512, 600})
                     run_exact(comm, op, w, rows, ++call);
                 });
      }
    }
  }
}

TEST(GemmAllReduce, ManyChunksAndSeveralWorkersPerRank) {
  for (const auto& base : all_modes(exact_options(3000, 264, 128))) {
    for (int chunks : {1, 3, 8}) {
      GemmAllReduceOptions options = base;
      options.chunks = chunks;
      with_ops(
          2, options,
          [](Communicator& comm, GemmAllReduce& op) {
            const ExactWeight w(264, 128);
            for (std::int64_t call = 1; call <= 4; ++call) {
              run_exact(comm, op, w, call % 2 == 0 ? 2999 : 1500, call);
            }
          },
          3);
    }
  }
}

TEST(GemmAllReduce, M05_M07_OnlyTheRowsOfTheCallAreWritten) {
  with_ops(2, exact_options(512, 136, 128), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(136, 128);
    std::int64_t call = 0;
    for (std::int64_t rows : {300, 1, 33, 65, 129}) {
      std::vector<Bf16> out(512 * 136 + 64, Bf16{0x5A5A});
      run_exact(comm, op, w, rows, ++call, out.data());
      for (std::size_t i = rows * 136; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0x5A5A) << rows;
    }
  });
}

TEST(GemmAllReduce, M01_NoRowsBetweenTwoCalls) {
  for (const auto& options : all_modes(exact_options(256, 128, 128))) {
    with_ops(3, options, [](Communicator& comm, GemmAllReduce& op) {
      const ExactWeight w(128, 128);
      run_exact(comm, op, w, 256, 1);
      for (int call = 2; call < 12; ++call) run_exact(comm, op, w, 0, call);
      run_exact(comm, op, w, 256, 12);
    });
  }
}

// The results of all ranks for the first m rows of a group.
std::vector<std::vector<Bf16>> run_group(const RandomGroup& group,
                                         const GemmAllReduceOptions& options, std::int64_t m,
                                         const Bf16* b, int repeats = 1) {
  std::vector<std::vector<Bf16>> all;
  std::mutex mutex;
  with_ops(group.world, options, [&](Communicator& comm, GemmAllReduce& op) {
    for (int i = 0; i < repeats; ++i) {
      const Output y = op.run(group.x(comm.rank(), m), group.ws[comm.rank()].view(), b);
      const std::lock_guard lock(mutex);
      all.emplace_back(y.data, y.data + y.rows * y.cols);
    }
  });
  return all;
}

TEST(GemmAllReduce, N08_AccuracyAgainstTheFloat64ReferenceAndEqualBitsOnAllRanks) {
  for (int world : {2, 3, 4}) {
    const RandomGroup group(world, 300, 520, 512, 7 * world);
    for (const Bf16* bias : {static_cast<const Bf16*>(nullptr), group.bias.data()}) {
      const auto want = group.reference(bias);
      for (const auto& options : all_modes(exact_options(512, 520, 512))) {
        const auto results = run_group(group, options, 300, bias, 3);
        const double limit = options.wire == Wire::kFp8 ? 3e-2 : 3e-3;
        EXPECT_LE(relative_l2(results[0], want), limit)
            << wire_name(options.wire) << " " << transport_name(options.transport);
        for (const auto& result : results) ASSERT_EQ(result, results[0]);
      }
    }
  }
}

TEST(GemmAllReduce, N05_ARowsBitsDoNotDependOnMOrOnItsOwner) {
  const RandomGroup group(3, 1200, 264, 256, 3);
  for (const auto& options : all_modes(exact_options(1200, 264, 256))) {
    const auto whole = run_group(group, options, 1200, nullptr)[0];
    for (std::int64_t rows : {1, 5, 100, 256, 700}) {
      for (const auto& part : run_group(group, options, rows, nullptr, 2)) {
        ASSERT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(Bf16)), 0) << rows;
      }
    }
  }
}

TEST(GemmAllReduce, N05_PartialsAreAddedInRankOrderWhoeverOwnsTheRow) {
  // Sums of 2^30, -2^30 and 1 in fp32 are 0 or 1, as the order has it.
  std::vector<float> partials{-0x1p30f, 1.0f, 0x1p30f};
  do {
    const float want = partials[0] + partials[1] + partials[2];
    with_ops(3, exact_options(96, 8, 128), [&](Communicator& comm, GemmAllReduce& op) {
      const float partial = partials[comm.rank()];
      const ConstantActivations x(96, 128, 1);
      ConstantWeight w(8, 128, partial < 0 ? -1.0f : 1.0f);
      w.scales[0] = std::abs(partial) / 128;
      const Output y = op.run(x.view(), w.view());
      for (int i = 0; i < 96 * 8; ++i) ASSERT_EQ(to_float(y.data[i]), want) << "row " << i / 8;
    });
  } while (std::next_permutation(partials.begin(), partials.end()));
}

TEST(GemmAllReduce, TwoRanksGiveTheBitsOfABf16AllReduce) {
  const RandomGroup group(2, 200, 256, 384, 11);
  const auto fused = run_group(group, exact_options(200, 256, 384), 200, nullptr);
  std::vector<std::vector<Bf16>> partials;
  for (int rank = 0; rank < 2; ++rank) {
    partials.emplace_back(200 * 256);
    test_engine(rank)->gemm(group.x(rank, 200), group.ws[rank].view(), nullptr,
                            partials[rank].data(), nullptr);
  }
  for (std::size_t i = 0; i < partials[0].size(); ++i) {
    ASSERT_EQ(fused[0][i], to_bf16(to_float(partials[0][i]) + to_float(partials[1][i])));
  }
}

TEST(GemmAllReduce, N01_BiasIsAddedOnce) {
  // K = 4 split in two, padded with zeros to a block per rank.
  const float x[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const float w[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  const float want[2][3] = {{130, 270, 410}, {170, 374, 576}};  // 578 reads 576 in bf16
  std::vector<Bf16> bias(8);
  for (int i = 0; i < 3; ++i) bias[i] = to_bf16(static_cast<float>(100 * (i + 1)));
  for (Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
    GemmAllReduceOptions options = exact_options(2, 8, 128);
    options.transport = transport;
    with_ops(2, options, [&](Communicator& comm, GemmAllReduce& op) {
      ConstantActivations xs(2, 128, 0);
      ConstantWeight ws(8, 128, 0);
      for (int k = 0; k < 2; ++k) {
        for (int m = 0; m < 2; ++m) xs.codes[m * 128 + k] = to_e4m3(x[m][comm.rank() * 2 + k]);
        for (int n = 0; n < 3; ++n) ws.codes[n * 128 + k] = to_e4m3(w[n][comm.rank() * 2 + k]);
      }
      const Output y = op.run(xs.view(), ws.view(), bias.data());
      for (int m = 0; m < 2; ++m) {
        for (int n = 0; n < 3; ++n) EXPECT_EQ(to_float(y.data[m * 8 + n]), want[m][n]);
      }
    });
  }
}

TEST(GemmAllReduce, NaNAndInfinityReachEveryRank) {
  for (const auto& options : all_modes(exact_options(64, 128, 128))) {
    with_ops(2, options, [&](Communicator& comm, GemmAllReduce& op) {
      ConstantActivations x(64, 128, 1);
      const ConstantWeight w(128, 128, 2);
      if (comm.rank() == 0) x.codes[40 * 128] = {0x7F};
      const Output y = op.run(x.view(), w.view());
      for (int row = 0; row < 64; ++row) {
        const float value = to_float(y.data[row * 128 + 5]);
        if (row == 40) {
          EXPECT_TRUE(std::isnan(value));
        } else {
          EXPECT_EQ(value, 512.0f);
        }
      }
    });
  }
}

TEST(GemmAllReduce, BadOperandsAreRefusedInWordsAndTheOpStaysUsable) {
  with_ops(2, exact_options(64, 128, 256), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(128, 256);
    const ExactActivations x(64, 256, comm.rank(), 1);
    std::vector<Bf16> out(64 * 128);
    const auto refused = [&](auto change, const char* words) {
      ActivationView bad_x = x.view();
      WeightView bad_w = w.view();
      Bf16* bad_out = out.data();
      change(bad_x, bad_w, bad_out);
      EXPECT_THAT(op.why_not(bad_x, bad_w, bad_out), HasSubstr(words));
      try {
        op.run(bad_x, bad_w, nullptr, bad_out);
        ADD_FAILURE() << "accepted: " << words;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(e.what(), HasSubstr(words));
      }
    };
    refused([](auto& v, auto&, auto&) { v.rows = 65; }, "65");
    refused([](auto& v, auto&, auto&) { v.codes = nullptr; }, "null");
    refused([](auto& v, auto&, auto&) { v.row_stride = 255; }, "255");
    refused([](auto& v, auto&, auto&) { v.depth = 128; }, "K=256");
    refused([](auto&, auto& v, auto&) { v.cols = 64; }, "[128, 256]");
    refused([](auto&, auto& v, auto&) { v.scales = nullptr; }, "null");
    // R11: out may alias neither operands nor an earlier result.
    const Bf16* earlier = op.run(x.view(), w.view()).data;
    refused([&](auto&, auto&, auto& o) { o = const_cast<Bf16*>(earlier) + 5; }, "window");
    refused([&](auto& v, auto&, auto& o) { o = (Bf16*)v.codes; }, "overlaps");
    run_exact(comm, op, w, 64, 2);
  });
}

TEST(GemmAllReduce, S08_S09_StridedOperandsGiveTheBitsOfDenseOnes) {
  const RandomGroup group(2, 70, 136, 512, 5);
  with_ops(2, exact_options(70, 136, 256), [&](Communicator& comm, GemmAllReduce& op) {
    ActivationView x = group.xs[comm.rank()].view();
    WeightView w = group.ws[comm.rank()].view();
    x.depth = w.depth = 256;  // the left half of wider rows
    std::vector<E4m3> xc, wc;
    std::vector<float> xs, ws;
    for (int r = 0; r < 70; ++r) {
      xc.insert(xc.end(), x.codes + r * 512, x.codes + r * 512 + 256);
      xs.insert(xs.end(), x.scales + r * 4, x.scales + r * 4 + 2);
    }
    for (int r = 0; r < 136; ++r) wc.insert(wc.end(), w.codes + r * 512, w.codes + r * 512 + 256);
    for (int r = 0; r < 2; ++r) ws.insert(ws.end(), w.scales + r * 4, w.scales + r * 4 + 2);
    const Output strided = op.run(x, w);
    const Output dense = op.run({xc.data(), 70, 256, 256, xs.data(), 2, 1},
                                {wc.data(), 136, 256, 256, ws.data(), 2, 1});
    EXPECT_EQ(std::memcmp(strided.data, dense.data, 70 * 136 * sizeof(Bf16)), 0);
  });
}

TEST(GemmAllReduce, M09_FewRowsLeaveTheirNeighboursAlone) {
  with_ops(2, exact_options(64, 128, 128), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(128, 128);
    for (std::int64_t rows = 1; rows < 32; ++rows) {
      std::vector<Bf16> guarded((rows + 2) * 128, Bf16{0x5A5A});
      run_exact(comm, op, w, rows, rows, guarded.data() + 128);
      for (int i = 0; i < 128; ++i) {
        ASSERT_EQ(guarded[i].bits, 0x5A5A);
        ASSERT_EQ(guarded[(rows + 1) * 128 + i].bits, 0x5A5A);
      }
    }
  });
}

TEST(GemmAllReduce, TheTimelineShowsEveryTileAndEveryTransfer) {
  for (const auto& options : all_modes(exact_options(1024, 264, 128))) {
    Timeline timeline;
    with_ops(2, options, [&](Communicator& comm, GemmAllReduce& op) {
      const ExactWeight w(264, 128);
      const ExactActivations x(1024, 128, comm.rank(), 1);
      op.run(x.view(), w.view(), nullptr, nullptr, &timeline);
      run_exact(comm, op, w, 1024, 2);  // unrecorded
    });
    int gemm = 0, scatter = 0, gather = 0;
    for (const auto& event : timeline.events()) {
      EXPECT_LE(event.begin_ns, event.end_ns);
      gemm += event.activity == Activity::kGemm;
      scatter += event.activity == Activity::kScatter;
      gather += event.activity == Activity::kGather;
    }
    EXPECT_GE(gemm, 2 * 4 * 2);  // ranks x tile rows x tile columns
    EXPECT_GE(scatter, 2);
    EXPECT_GE(gather, 2);
  }
}

TEST(GemmAllReduce, TheTimelineIsCompleteWhenTheCallReturns) {
  for (auto options : all_modes(exact_options(1024, 64, 128))) {
    if (options.transport != Transport::kCopyEngine) continue;
    run_ranks(2, [&](Communicator& comm) {
      auto slow = std::make_shared<FaultHooks>();
      if (comm.rank() == 0) slow->jitter = std::chrono::milliseconds(20);
      auto own = options;
      own.faults = slow;
      const auto op = GemmAllReduce::create(comm, test_engine(comm.rank()), own);
      Timeline timeline;
      const ExactWeight w(64, 128);
      const ExactActivations x(1024, 128, comm.rank(), 1);
      op->run(x.view(), w.view(), nullptr, nullptr, &timeline);
      int scatter = 0, gather = 0;
      for (const auto& event : timeline.events()) {
        scatter += event.activity == Activity::kScatter;
        gather += event.activity == Activity::kGather;
      }
      EXPECT_EQ(scatter, 2);  // the chunks of the peer's band
      EXPECT_EQ(gather, 2);   // and of its own
    });
  }
}

}  // namespace
}  // namespace rowband
