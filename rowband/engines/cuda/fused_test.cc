// The fused kernel on the GPUs there are: exactness, accuracy, bits, repeated calls, faults.
// Skipped, with a message, without a GPU. scripts/test-gpu runs these.
#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/testing.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

TEST(CudaFused, W01_N03_K01_M01_M05_ExactForEveryWorldOnOneGpu) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world = 1; world <= 8; ++world) {
    with_gpu_ops(world, 1, exact_options(2100, 264, 128),
                 [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
                   std::int64_t call = 0;
                   for (std::int64_t rows : {2100, 1, 33, 0, 129, 256, 257, 1024}) {
                     run_exact_on_gpu(comm, engine, op, w, rows, ++call);
                   }
                 });
  }
}

TEST(CudaFused, ExactOverTwoGpus) {
  ROWBAND_NEEDS_GPUS(2);
  for (int world : {2, 4, 8}) {
    with_gpu_ops(world, 2, exact_options(4096, 1032, 384),
                 [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const OnDevice<ExactWeight> w(engine, ExactWeight(1032, 384));
                   std::int64_t call = 0;
                   for (std::int64_t rows : {4096, 1, 300, 0, 2048, 4095}) {
                     run_exact_on_gpu(comm, engine, op, w, rows, ++call);
                   }
                 });
  }
}

TEST(CudaFused, K03_EveryNumberOfDepthBlocks) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  for (std::int64_t depth = 128; depth <= 8192; depth += depth < 2304 ? 128 : 1408) {
    ConstantActivations x(300, depth, 1.0f);
    ConstantWeight w(264, depth, 2.0f);
    const OnDevice<ConstantActivations> xd(*engine, x);
    const OnDevice<ConstantWeight> wd(*engine, w);
    std::vector<Bf16> host(300 * 264, Bf16{0x7FC0});
    const auto out = std::const_pointer_cast<void>(engine->upload(host.data(), host.size() * 2));
    engine->gemm(xd.view(), wd.view(), nullptr, static_cast<Bf16*>(out.get()), nullptr);
    engine->download(host.data(), out.get(), host.size() * 2, nullptr);
    for (Bf16 value : host) {
      ASSERT_EQ(value, to_bf16(2.0f * static_cast<float>(depth))) << "K=" << depth;
    }
  }
}

// Random operands; reference and results over all ranks.
struct RandomGroup {
  std::int64_t rows, cols, depth;
  std::vector<RandomActivations> xs;
  std::vector<RandomWeight> ws;
  std::vector<Bf16> bias;

  RandomGroup(int world, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed)
      : rows(m), cols(n), depth(k), bias(random_bf16(n, seed + 1000)) {
    for (int rank = 0; rank < world; ++rank) {
      xs.emplace_back(m, k, seed + rank);
      ws.emplace_back(n, k, seed + 100 + rank);
    }
  }
  std::vector<double> reference() const {
    std::vector<ActivationView> x;
    std::vector<WeightView> w;
    std::vector<std::int64_t> wanted;
    for (const auto& one : xs) x.push_back(one.view());
    for (const auto& one : ws) w.push_back(one.view());
    for (std::int64_t row = 0; row < rows; ++row) wanted.push_back(row);
    return reference_rows(x, w, bias.data(), wanted, 4);
  }
  std::vector<std::vector<Bf16>> run(std::int64_t m, int devices, int repeats) const {
    std::vector<std::vector<Bf16>> all;
    std::mutex mutex;
    with_gpu_ops(static_cast<int>(xs.size()), devices, exact_options(rows, cols, depth),
                 [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const OnDevice<RandomActivations> x(engine, xs[comm.rank()]);
                   const OnDevice<RandomWeight> w(engine, ws[comm.rank()]);
                   const auto b = engine.upload(bias.data(), bias.size() * sizeof(Bf16));
                   ActivationView view = x.view();
                   view.rows = m;
                   for (int i = 0; i < repeats; ++i) {
                     auto y = fetch(engine, op,
                                    op.run(view, w.view(), static_cast<const Bf16*>(b.get())));
                     const std::lock_guard lock(mutex);
                     all.push_back(std::move(y));
                   }
                 });
    return all;
  }
};

TEST(CudaFused, N01_N08_AccurateAndEqualOnAllRanksAndRepetitions) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {1, 2, 3, 8}) {
    const RandomGroup group(world, 1100, 520, 512, 7 * world);
    const auto results = group.run(1100, std::min(device_count(), 2), 5);
    EXPECT_LE(relative_l2(results[0], group.reference()), 3e-3) << "W=" << world;
    for (const auto& result : results) ASSERT_EQ(result, results[0]);
  }
}

TEST(CudaFused, N05_ARowsBitsDoNotDependOnM) {
  ROWBAND_NEEDS_GPUS(1);
  const RandomGroup group(3, 1500, 264, 256, 3);
  const auto whole = group.run(1500, 1, 1)[0];
  for (std::int64_t rows : {1, 5, 256, 700}) {
    for (const auto& part : group.run(rows, 1, 2)) {
      ASSERT_EQ(std::memcmp(part.data(), whole.data(), part.size() * sizeof(Bf16)), 0) << rows;
    }
  }
}

TEST(CudaFused, R01_ManyCallsOfAlternatingShapesQueuedBackToBack) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr int kCalls = 2500;
  for (int devices = 1; devices <= std::min(device_count(), 2); ++devices) {
    with_gpu_ops(4, devices, exact_options(1300, 264, 128),
                 [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
                   std::vector<std::unique_ptr<OnDevice<ExactActivations>>> xs;
                   for (int data = 0; data < 7; ++data) {
                     xs.push_back(std::make_unique<OnDevice<ExactActivations>>(
                         engine, ExactActivations(1300, 128, comm.rank(), data)));
                   }
                   for (int call = 0; call < kCalls; ++call) {
                     ActivationView x = xs[call % 7]->view();
                     x.rows = call % 5 == 0 ? 1300 : 1 + call % 300;
                     const Output y = op.run(x, w.view());
                     if (call % 50 != 49) continue;  // the stream stays full in between
                     const auto host = fetch(engine, op, y);
                     ASSERT_EQ(exact_difference({host.data(), y.rows, y.cols}, x.rows, 128,
                                                comm.size(), call % 7),
                               "");
                   }
                 });
  }
}

TEST(CudaFused, R04_AResultStaysUntouchedThroughTheNextCall) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(
      2, 1, exact_options(700, 264, 128),
      [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
        const OnDevice<ExactActivations> a(engine, ExactActivations(700, 128, comm.rank(), 1));
        const OnDevice<ExactActivations> b(engine, ExactActivations(700, 128, comm.rank(), 2));
        const Output first = op.run(a.view(), w.view());
        op.run(b.view(), w.view());
        const auto host = fetch(engine, op, first);
        EXPECT_EQ(exact_difference({host.data(), 700, 264}, 700, 128, 2, 1), "");
      });
}

TEST(CudaFused, R10_TheCallNumberPasses32Bits) {
  ROWBAND_NEEDS_GPUS(1);
  for (std::int64_t wrap : {std::int64_t{1} << 31, std::int64_t{1} << 32}) {
    auto faults = std::make_shared<FaultHooks>();
    faults->first_call = wrap - 5;
    GemmAllReduceOptions options = exact_options(600, 264, 128);
    options.faults = faults;
    with_gpu_ops(2, 1, options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
      for (int call = 1; call <= 20; ++call) {
        run_exact_on_gpu(comm, engine, op, w, call % 3 == 0 ? 600 : 10, call);
      }
    });
  }
}

TEST(CudaFused, ADelayedRankChangesNothing) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(3, 1, exact_options(800, 264, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
                 std::minstd_rand random(comm.rank() + 1);
                 for (int call = 1; call <= 60; ++call) {
                   if (random() % 3 == 0) std::this_thread::sleep_for(1us * (random() % 3000));
                   run_exact_on_gpu(comm, engine, op, w, call % 2 == 0 ? 800 : 20, call);
                 }
               });
}

TEST(CudaFused, G01_G03_G04_GraphsOfSeveralShapesReplayBesideEagerCalls) {
  ROWBAND_NEEDS_GPUS(1);
  const int devices = std::min(device_count(), 2);
  with_gpu_ops(
      2, devices, exact_options(4096, 264, 128),
      [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        ASSERT_EQ(cudaSetDevice(comm.rank() % devices), cudaSuccess);
        const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
        cudaStream_t stream;
        ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        const auto memory = engine.upload(std::vector<E4m3>(4096 * 128).data(), 4096 * 128);
        const auto codes = static_cast<E4m3*>(const_cast<void*>(memory.get()));
        const std::vector<float> ones(4096, 1.0f);
        const auto scales = engine.upload(ones.data(), ones.size() * sizeof(float));
        const auto view = [&](std::int64_t rows) -> ActivationView {
          return {codes, rows, 128, 128, static_cast<const float*>(scales.get()), 1, 1};
        };
        struct Captured {
          std::int64_t rows;
          Output y;
          cudaGraphExec_t graph;
        };
        std::vector<Captured> graphs;
        // A captured call keeps the output slot that it was captured with.
        for (std::int64_t rows : {8, 64, 512, 4096}) {
          Captured captured{rows, {}, nullptr};
          cudaGraph_t graph;
          ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
          captured.y = op.run(view(rows), w.view(), nullptr, nullptr, nullptr, stream);
          ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
          ASSERT_EQ(cudaGraphInstantiate(&captured.graph, graph, 0), cudaSuccess);
          cudaGraphDestroy(graph);
          graphs.push_back(captured);
        }
        std::minstd_rand same_on_all_ranks(3);
        for (int call = 1; call <= 200; ++call) {
          const auto& chosen = graphs[same_on_all_ranks() % graphs.size()];
          const bool eager = same_on_all_ranks() % 4 == 0;
          const ExactActivations x(chosen.rows, 128, comm.rank(), call);
          ASSERT_EQ(cudaMemcpyAsync(codes, x.codes.data(), x.codes.size(), cudaMemcpyHostToDevice,
                                    stream),
                    cudaSuccess);
          Output y = chosen.y;
          if (eager) {
            y = op.run(view(chosen.rows), w.view(), nullptr, nullptr, nullptr, stream);
          } else {
            ASSERT_EQ(cudaGraphLaunch(chosen.graph, stream), cudaSuccess);
          }
          std::vector<Bf16> host(static_cast<std::size_t>(y.rows * y.cols));
          engine.download(host.data(), y.data, host.size() * sizeof(Bf16), stream);
          ASSERT_EQ(op.poison(), "");
          ASSERT_EQ(exact_difference({host.data(), y.rows, y.cols}, chosen.rows, 128, 2, call), "");
        }
        for (auto& captured : graphs) cudaGraphExecDestroy(captured.graph);
        cudaStreamDestroy(stream);
      });
}

// What each rank's op says after its last call.
std::vector<std::string> poisons(int world, const GemmAllReduceOptions& options,
                                 const std::function<void(Communicator&, Engine&, GemmAllReduce&,
                                                          const OnDevice<ExactWeight>&)>& body) {
  std::vector<std::string> all(static_cast<std::size_t>(world));
  with_gpu_ops(world, 1, options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
    const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
    try {
      body(comm, engine, op, w);
    } catch (const std::exception&) {
    }
    all[static_cast<std::size_t>(comm.rank())] = op.poison();
  });
  return all;
}

TEST(CudaFused, D06_ARankThatNeverBeginsIsNamedWithinTheDeadline) {
  ROWBAND_NEEDS_GPUS(1);
  GemmAllReduceOptions options = exact_options(600, 264, 128);
  options.deadline = 500ms;
  const auto begin = std::chrono::steady_clock::now();
  const auto all = poisons(
      3, options,
      [](Communicator& comm, Engine& engine, GemmAllReduce& op, const OnDevice<ExactWeight>& w) {
        run_exact_on_gpu(comm, engine, op, w, 600, 1);
        if (comm.rank() == 2) return;
        run_exact_on_gpu(comm, engine, op, w, 600, 2);
      });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(all[rank], AllOf(HasSubstr("0.5 s"), HasSubstr("rank 2"))) << rank;
  }
  EXPECT_EQ(all[2], "");
}

TEST(CudaFused, D03_DifferentMIsNamedOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  GemmAllReduceOptions options = exact_options(600, 264, 128);
  options.deadline = 2s;
  const auto all = poisons(
      2, options,
      [](Communicator& comm, Engine& engine, GemmAllReduce& op, const OnDevice<ExactWeight>& w) {
        run_exact_on_gpu(comm, engine, op, w, comm.rank() == 0 ? 256 : 384, 1);
      });
  EXPECT_THAT(all[0], AllOf(HasSubstr("different M"), HasSubstr("384")));
  EXPECT_THAT(all[1], AllOf(HasSubstr("different M"), HasSubstr("256")));
}

TEST(CudaFused, ARefusedCallIsAnErrorForThePeerAndAllRefusingIsNone) {
  ROWBAND_NEEDS_GPUS(1);
  GemmAllReduceOptions options = exact_options(600, 264, 128);
  options.deadline = 2s;
  const auto all = poisons(
      2, options,
      [](Communicator& comm, Engine& engine, GemmAllReduce& op, const OnDevice<ExactWeight>& w) {
        EXPECT_THROW(op.run({}, w.view()), Error);  // on both
        run_exact_on_gpu(comm, engine, op, w, 600, 2);
        EXPECT_EQ(op.poison(), "");
        if (comm.rank() == 1) return op.refuse();
        run_exact_on_gpu(comm, engine, op, w, 600, 3);
      });
  EXPECT_THAT(all[0], HasSubstr("rank 1 refused"));
}

TEST(CudaFused, D01_O01_NoRoomIsAnErrorOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  for (bool allocation : {false, true}) {
    int failed = 0;
    std::mutex mutex;
    run_ranks(2, [&](Communicator& comm) {
      GemmAllReduceOptions options = exact_options(600, 264, 128);
      auto faults = std::make_shared<FaultHooks>();
      if (comm.rank() == 1 && allocation) faults->fail_window_allocation = true;
      if (comm.rank() == 1 && !allocation) faults->available_bytes = 4096;
      options.faults = faults;
      try {
        GemmAllReduce::create(comm, engine_for(comm.rank(), 2, 1), options);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        const std::lock_guard lock(mutex);
        ++failed;
      }
    });
    EXPECT_EQ(failed, 2);
  }
}

TEST(CudaFused, WhatIsNotServedIsRefusedInWordsBeforeAnythingIsAllocated) {
  ROWBAND_NEEDS_GPUS(1);
  const auto refused = [](auto change, const char* words) {
    run_ranks(1, [&](Communicator& comm) {
      GemmAllReduceOptions options = exact_options(600, 264, 128);
      change(options);
      try {
        GemmAllReduce::create(comm, engine_for(0, 1, 1), options);
        ADD_FAILURE() << words;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.what(), HasSubstr(words));
      }
    });
  };
  refused([](auto& o) { o.wire = Wire::kFp8; }, "wire fp8");
  refused([](auto& o) { o.transport = Transport::kCopyEngine; }, "copy_engine");
  EngineOptions options;
  options.device = 99;
  EXPECT_THROW(make_cuda_engine(options), Error);
}

TEST(CudaFused, S10_AMisalignedOperandIsRefusedAndTheContextLivesOn) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(1, 1, exact_options(600, 264, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const OnDevice<ExactWeight> w(engine, ExactWeight(264, 128));
                 const OnDevice<ExactActivations> x(engine, ExactActivations(600, 128, 0, 1));
                 ActivationView shifted = x.view();
                 shifted.codes += 2;
                 shifted.rows = 500;
                 EXPECT_THROW(op.run(shifted, w.view()), Error);
                 run_exact_on_gpu(comm, engine, op, w, 600, 2);
               });
}

TEST(CudaFused, L07_WindowsGiveTheirMemoryBack) {
  ROWBAND_NEEDS_GPUS(1);
  std::size_t before = 0, after = 0, total = 0;
  for (int round = 0; round < 60; ++round) {
    with_gpu_ops(2, 1, exact_options(4096, 1024, 128),
                 [](Communicator&, Engine&, GemmAllReduce&) {});
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaMemGetInfo(round == 9 ? &before : &after, &total), cudaSuccess);
  }
  EXPECT_NEAR(static_cast<double>(after), static_cast<double>(before), 4 << 20);
}

}  // namespace
}  // namespace rowband::cuda
