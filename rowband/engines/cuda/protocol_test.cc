// Repeated calls on the GPUs: window reuse, changing shapes, skewed ranks, late bytes, wrap of the
// epoch, streams, aliasing, groups side by side. Skipped, with a message, without a GPU.
#include <gmock/gmock.h>

#include <barrier>
#include <optional>
#include <random>
#include <thread>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/random_calls.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

Deadline soon() { return Deadline::after(60s); }

// Where there are two GPUs: over both, and all ranks on one.
struct Ranks {
  int world, devices;
};
std::vector<Ranks> ranks() {
  if (gpus() < 2) return {{2, 1}, {4, 1}};
  return {{2, 2}, {4, 1}, {8, 2}};
}

TEST(CudaProtocol, R01_TenThousandCallsOfAlternatingShapesBackToBack) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [world, devices] : ranks()) {
    int calls_left = 10000;  // of the first variant; a fifth of the others
    for (const auto& options : served_variants(exact_options(1300, 320, 128), world)) {
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
      with_gpu_ops(world, devices, options,
                   [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                     const ExactCalls calls(comm, engine, op);
                     for (int call = 1; call <= calls_left; ++call) {
                       calls.queue(call % 5 == 0 ? 1300 : 1 + call % 300, call);
                     }
                     calls.expect_exact();
                   });
      calls_left = 2000;
    }
  }
}

TEST(CudaProtocol, R01_TwoOpsOfUnlikeShapesInTurn) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {4, 8}) {
    run_ranks(world, [&](Communicator& comm) {
      check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
      load_test_kernels();
      const auto engine = engine_for(comm.rank(), world, gpus());
      const auto small = GemmAllReduce::create(comm, engine, exact_options(16, 2944, 128));
      const auto large = GemmAllReduce::create(comm, engine, exact_options(2048, 7168, 128));
      const auto stream = std::make_shared<TestStream>(comm);
      const ExactCalls few(comm, *engine, *small, stream), many(comm, *engine, *large, stream);
      comm.barrier(soon());
      for (int call = 1; call <= 2000; ++call) {
        few.queue(1 + call % 16, call);
        if (call % 2 == 0) many.queue(call % 4 == 0 ? 2048 : 100, call);
      }
      few.expect_exact();
      many.expect_exact();
      comm.barrier(soon());
    });
  }
}

TEST(CudaProtocol, R04_AResultStaysUntouchedThroughTheNextCalls) {
  ROWBAND_NEEDS_GPUS(1);
  for (int slots : {2, 3}) {
    for (auto options : served_variants(exact_options(2735, 6144, 128), 4)) {
      options.slots = slots;
      with_gpu_ops(4, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const ExactCalls calls(comm, engine, op);
        const Output kept = calls.queue(2735, 1);
        for (int call = 2; call < 2 + slots - 1; ++call) {
          EXPECT_NE(calls.queue(2735, call).data, kept.data);
          calls.check(kept, 1);
        }
        calls.expect_exact();
      });
    }
  }
}

TEST(CudaProtocol, R06_OpsRebuiltWithOtherCapacitiesAfterUnlikeHistories) {
  ROWBAND_NEEDS_GPUS(1);
  run_ranks(8, [](Communicator& comm) {
    check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
    load_test_kernels();
    const auto engine = engine_for(comm.rank(), 8, gpus());
    std::vector<DeviceMemory> history;
    for (int i = 0; i < 3 * comm.rank(); ++i) history.push_back(allocate_device((i + 1) << 20));
    for (std::int64_t max_rows : {64, 700, 65, 1}) {
      const auto op = GemmAllReduce::create(comm, engine, exact_options(max_rows, 64, 128));
      const ExactCalls calls(comm, *engine, *op);
      for (int call = 1; call <= 5; ++call) calls.queue(max_rows, call);
      calls.expect_exact();
      comm.barrier(soon());
    }
  });
}

// Every piece leaves late by a random time: bytes that were announced too soon would be missing,
// and a buffer that was reused too soon would be seen.
TEST(CudaProtocol, R08_R13_LateBytesAreWaitedFor) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [world, devices] : ranks()) {
    for (auto options : served_variants(exact_options(4096, 320, 128), world)) {
      auto faults = std::make_shared<FaultHooks>();
      faults->jitter = 100us;
      faults->tile_rows = kHeights[world % 3];
      options.faults = faults;
      options.chunks = 3;
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
      with_gpu_ops(world, devices, options,
                   [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                     const ExactCalls calls(comm, engine, op);
                     for (int call = 1; call <= 500; ++call) {
                       calls.queue(call % 3 == 0 ? 4096 : 700 + call % 300, call);
                     }
                     calls.expect_exact();
                   });
    }
  }
}

// The same of the copy engine: its copies are slow, of bands so large that they take a while.
TEST(CudaProtocol, R08_R13_LateCopiesAreWaitedFor) {
  ROWBAND_NEEDS_GPUS(2);
  for (auto options : served_variants(exact_options(4096, 3072, 128), 2)) {
    if (options.transport != Transport::kCopyEngine) continue;
    SCOPED_TRACE(variant_name(options));
    auto faults = std::make_shared<FaultHooks>();
    faults->late_copies = 8 << 20;
    options.faults = faults;
    options.chunks = 3;
    with_gpu_ops(2, 2, options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      const ExactCalls calls(comm, engine, op);
      for (int call = 1; call <= 300; ++call) {
        calls.queue(call % 3 == 0 ? 700 + call % 300 : 4096, call);
      }
      calls.expect_exact();
    });
  }
}

// With as few on their way as there may be, nearly every piece waits for another.
TEST(CudaProtocol, PiecesThatWaitForTheirPlaceOnTheLink) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [world, devices] : ranks()) {
    for (auto options : served_variants(exact_options(2000, 576, 128), world)) {
      auto faults = std::make_shared<FaultHooks>();
      faults->pieces_on_link = world - 1;
      options.faults = faults;
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
      with_gpu_ops(world, devices, options,
                   [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                     const ExactCalls calls(comm, engine, op);
                     for (int call = 1; call <= 200; ++call) {
                       calls.queue(call % 3 == 0 ? 2000 : 1 + 7 * call % 900, call);
                     }
                     calls.expect_exact();
                   });
    }
  }
}

TEST(CudaProtocol, R10_TheCallNumberPasses32Bits) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3}) {
    for (int bits : {31, 32, 33}) {
      const std::int64_t wrap = std::int64_t{1} << bits;
      for (auto options : served_variants(exact_options(600, 320, 128), world)) {
        SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
        auto faults = std::make_shared<FaultHooks>();
        faults->first_call = wrap - 12;  // construction makes some calls
        faults->pieces_on_link = 3;      // their count wraps, too
        options.faults = faults;
        with_gpu_ops(world, gpus(), options,
                     [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                       EXPECT_LT(op.calls(), wrap - 2);
                       const ExactCalls calls(comm, engine, op);
                       for (int call = 1; call <= 30; ++call) {
                         calls.queue(call % 3 == 0 ? 600 : 10, call);
                         if (call % 4 == 0) op.refuse(calls.stream());
                       }
                       calls.expect_exact();
                       EXPECT_GT(op.calls(), wrap + 10);
                     });
      }
    }
  }
}

TEST(CudaProtocol, R11_AnAliasedOutputIsRefusedInWords) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3, 4}) {
    with_gpu_ops(world, gpus(), exact_options(300, 320, 384),
                 [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const auto out = device_array<Bf16>(engine, 300 * 320);
                   const ExactCalls calls(comm, engine, op);
                   auto* earlier = const_cast<Bf16*>(calls.queue(300, 1).data);
                   auto* x = reinterpret_cast<Bf16*>(const_cast<E4m3*>(calls.x(300).codes));
                   auto* w = reinterpret_cast<Bf16*>(const_cast<E4m3*>(calls.w().codes));
                   EXPECT_THAT(op.why_not(calls.x(300), calls.w(), earlier), HasSubstr("window"));
                   EXPECT_THAT(op.why_not(calls.x(300), calls.w(), x), HasSubstr("overlaps"));
                   EXPECT_THAT(op.why_not(calls.x(300), calls.w(), w), HasSubstr("overlaps"));
                   EXPECT_THROW(calls.run(300, earlier), Error);
                   EXPECT_THROW(calls.run(300, x), Error);
                   calls.queue(300, 2, out.get());
                   calls.queue(300, 3, out.get());  // over the call before's
                   calls.expect_exact();
                 });
  }
}

TEST(CudaProtocol, R12_OtherCollectivesAndTheEnginesOtherWorkInBetweenUnderSkew) {
  ROWBAND_NEEDS_GPUS(1);
  auto fp8 = exact_options(300, 320, 128);
  fp8.wire = Wire::kFp8;
  for (const auto& [world, devices] : ranks()) {
    with_gpu_ops(world, devices, exact_options(600, 320, 128),
                 [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const auto second_engine = engine_for(comm.rank(), world, devices);
                   const auto other = GemmAllReduce::create(comm, second_engine, fp8);
                   const auto partial = device_array<Bf16>(engine, 600 * 320);
                   const auto values = device_array<Bf16>(engine, 600 * 128);
                   const auto codes = device_array<E4m3>(engine, 600 * 128);
                   const auto scales = device_array<float>(engine, 600);
                   const auto stream = std::make_shared<TestStream>(comm);
                   const ExactCalls calls(comm, engine, op, stream);
                   const ExactCalls others(comm, *second_engine, *other, stream);
                   std::minstd_rand random(comm.rank() + 1);
                   for (int call = 1; call <= 5000; ++call) {
                     if (random() % 50 == 0) std::this_thread::sleep_for(1us * (random() % 300));
                     calls.queue(1 + call % 600, call);
                     if (call % 2 == 0) others.queue(1 + call % 300, call);
                     if (call % 3 == 0) {
                       engine.quantize(values.get(), 600, 128, 128, ScaleFormat::kFp32, codes.get(),
                                       scales.get(), stream->get());
                     }
                     if (call % 5 == 0) {
                       engine.gemm(calls.x(600), calls.w(), nullptr, partial.get(), nullptr,
                                   stream->get());
                     }
                     if (call % 64 == 0) {
                       comm.barrier(soon());
                       std::vector<Bf16> ones(64, to_bf16(1.0f));
                       comm.all_reduce(ones.data(), 64, soon());
                       for (Bf16 value : ones)
                         ASSERT_EQ(to_float(value), static_cast<float>(comm.size()));
                     }
                   }
                   calls.expect_exact();
                   others.expect_exact();
                   comm.barrier(soon());
                 });
  }
}

TEST(CudaProtocol, ADelayedRankChangesNothing) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [world, devices] : ranks()) {
    with_gpu_ops(world, devices, exact_options(800, 320, 128),
                 [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const ExactCalls calls(comm, engine, op);
                   std::minstd_rand random(comm.rank() + 1);
                   for (int call = 1; call <= 200; ++call) {
                     if (random() % 3 == 0) std::this_thread::sleep_for(1us * (random() % 3000));
                     calls.queue(call % 2 == 0 ? 800 : 20, call);
                     if (random() % 10 == 0) calls.expect_exact();
                   }
                   calls.expect_exact();
                 });
  }
}

// A rank that owns no rows is done with a call before its peers are.
TEST(CudaProtocol, CallsThatAllRefuseMayFollowOneThatAPeerIsStillIn) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(8, gpus(), exact_options(64, 64, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls calls(comm, engine, op);
                 for (int call = 1; call <= 300; ++call) {
                   calls.queue(call % 3 == 0 ? 0 : 1, call);
                   op.refuse(calls.stream());
                   op.refuse(calls.stream());
                 }
                 calls.expect_exact();
               });
}

// One rank of a group with two ops.
struct TwoOps {
  explicit TwoOps(Communicator& comm)
      : engine(engine_for(comm.rank(), 2, gpus(), /*groups=*/2)),
        one(GemmAllReduce::create(comm, engine, exact_options(64, 64, 128))),
        two(GemmAllReduce::create(comm, engine, exact_options(300, 64, 128))),
        stream(std::make_shared<TestStream>(comm)),
        first(comm, *engine, *one, stream),
        second(comm, *engine, *two, stream) {}
  const std::shared_ptr<Engine> engine;
  const std::unique_ptr<GemmAllReduce> one, two;
  const std::shared_ptr<TestStream> stream;
  const ExactCalls first, second;
};

TEST(CudaProtocol, L05_TwoOpsAndTwoGroupsAtOnceDoNotMix) {
  ROWBAND_NEEDS_GPUS(1);
  std::barrier all_ranks(4);  // no rank allocates or frees while the other group's calls run
  const auto run_group = [&](int group) {
    run_ranks(2, [&](Communicator& comm) {
      try {
        check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
        load_test_kernels();
        std::optional<TwoOps> ops;
        if (group == 0) ops.emplace(comm);
        all_ranks.arrive_and_wait();
        if (group == 1) ops.emplace(comm);
        all_ranks.arrive_and_wait();
        for (int call = 1; call <= 1000; ++call) {
          ops->first.queue(1 + call % 64, call + 10000 * group);
          ops->second.queue(call % 300, call + 5000 + 10000 * group);
        }
        ops->first.expect_exact();
        ops->second.expect_exact();
        all_ranks.arrive_and_wait();
      } catch (...) {
        all_ranks.arrive_and_drop();
        throw;
      }
    });
  };
  std::exception_ptr failures[2];
  {
    std::vector<std::jthread> groups;
    for (int group = 0; group < 2; ++group) {
      groups.emplace_back([&, group] {
        try {
          run_group(group);
        } catch (...) {
          failures[group] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace
}  // namespace rowband::cuda
