// What a fault on the GPUs gives: an error in words on every rank, within the deadline, and never a
// wrong result. Skipped, with a message, without a GPU.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <thread>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/captured_calls.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;  // "" where nothing failed
};

std::shared_ptr<FaultHooks> hooks(int rank, int faulty_rank, auto change) {
  auto faults = std::make_shared<FaultHooks>();
  if (rank == faulty_rank) change(*faults);
  return faults;
}

GemmAllReduceOptions small_options() { return exact_options(600, 320, 128); }
GemmAllReduceOptions with_deadline(std::chrono::nanoseconds deadline,
                                   GemmAllReduceOptions options) {
  options.deadline = deadline;
  return options;
}

// What each rank meets when it makes the op of `options(rank)` and hands it to `body`. What a call
// met shows in the op's poison.
std::vector<Failure> failures(
    int world, const std::function<GemmAllReduceOptions(int)>& options,
    const std::function<void(Communicator&, Engine&, GemmAllReduce&)>& body = {}) {
  std::vector<Failure> all(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    Failure& own = all[static_cast<std::size_t>(comm.rank())];
    check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
    load_test_kernels();
    const auto engine = engine_for(comm.rank(), world, gpus());
    std::unique_ptr<GemmAllReduce> op;
    try {
      op = GemmAllReduce::create(comm, engine, options(comm.rank()));
      if (body) body(comm, *engine, *op);
    } catch (const Error& error) {
      own = {error.code(), error.what()};
    } catch (const std::exception& error) {
      own.text = error.what();
    }
    if (op != nullptr && !op->poison().empty()) own.text = op->poison();
    comm.barrier(Deadline::after(60s));  // nobody frees while a peer still runs
  });
  return all;
}

TEST(CudaFaults, D01_AnAllocationThatFailsOnOneRankFailsOnAllWithItsReason) {
  ROWBAND_NEEDS_GPUS(1);
  const auto all = failures(4, [](int rank) {
    auto options = small_options();
    options.faults = hooks(rank, 1, [](auto& f) { f.fail_window_allocation = true; });
    return options;
  });
  for (const auto& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 1"), HasSubstr("fault hook")));
  }
}

TEST(CudaFaults, D03_DifferentMIsNamedOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [zero, one] : {std::pair{256, 384}, {0, 256}, {600, 0}, {1, 2}}) {
    for (const auto& base : served_variants(small_options(), 2)) {
      const auto all = failures(
          2, [&](int) { return with_deadline(5s, base); },
          [&, zero = zero, one = one](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const ExactCalls calls(comm, engine, op);
            calls.queue(comm.rank() == 0 ? zero : one, 1);
            calls.expect_exact();
          });
      for (const auto& failure : all) {
        EXPECT_THAT(failure.text, AllOf(HasSubstr("different M"),
                                        HasSubstr(fmt::format("rank 0 passed {}", zero)),
                                        HasSubstr(fmt::format("rank 1 passed {}", one))));
      }
    }
  }
}

// A captured call keeps its slot; a peer that makes the same call eagerly is at another by then.
TEST(CudaFaults, D03_DifferentOutputSlotsAreNamedOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& mode : served_variants(small_options(), 2)) {
    const auto all = failures(
        2, [&](int) { return with_deadline(5s, mode); },
        [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
          const ExactCalls calls(comm, engine, op);
          const CapturedCalls captured(calls, {600});
          calls.fill(600, 1);
          if (comm.rank() == 0) {
            captured.replay();
          } else {
            calls.run(600);
          }
          calls.expect_exact();
        });
    for (const auto& failure : all) {
      EXPECT_THAT(failure.text, AllOf(HasSubstr("different output slots"), HasSubstr("rank 0"),
                                      HasSubstr("rank 1")));
    }
  }
}

TEST(CudaFaults, D03_DifferentOptionsAreNamedAtConstruction) {
  ROWBAND_NEEDS_GPUS(1);
  const auto all = failures(3, [](int rank) {
    auto options = small_options();
    if (rank == 1) options.max_rows = 601;
    return options;
  });
  for (const auto& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kDisagreement);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("max_rows"), HasSubstr("601")));
  }
}

TEST(CudaFaults, R02_ATransportThatMovesNothingFailsTheSelfTest) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3}) {
    for (std::int64_t from : {1, 6}) {  // also from the self-test's second call on
      for (int faulty = 0; faulty < world; ++faulty) {
        for (const auto& mode : served_variants(small_options(), world)) {
          SCOPED_TRACE(fmt::format("W={}, {}, from call {} on", world, variant_name(mode), from));
          const auto all = failures(world, [&](int rank) {
            auto options = mode;
            options.faults = hooks(rank, faulty, [&](auto& f) { f.skip_transfers_from = from; });
            return options;
          });
          for (const auto& failure : all) {
            EXPECT_EQ(failure.code, ErrorCode::kCorrupted) << failure.text;
            EXPECT_THAT(failure.text,
                        AllOf(HasSubstr("self-test"),
                              HasSubstr(std::string(transport_name(mode.transport)))));
          }
        }
      }
    }
  }
}

TEST(CudaFaults, R02_OneChunkThatIsNotMovedFailsTheSelfTest) {
  ROWBAND_NEEDS_GPUS(1);
  for (int chunk : {0, 3}) {
    for (const auto& mode : served_variants(exact_options(2048, 320, 128), 2)) {
      const auto all = failures(2, [&](int rank) {
        auto options = mode;
        options.chunks = 4;
        options.faults = hooks(rank, 1, [&](auto& f) {
          f.skip_transfers_from = 1;
          f.skip_only_chunk = chunk;
        });
        return options;
      });
      for (const auto& failure : all) EXPECT_EQ(failure.code, ErrorCode::kCorrupted) << chunk;
    }
  }
}

TEST(CudaFaults, D06_APeerThatSendsNothingIsNamedWithLegAndChunk) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3}) {
    for (const auto& mode : served_variants(small_options(), world)) {
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(mode));
      const auto begin = std::chrono::steady_clock::now();
      const auto all = failures(
          world,
          [&](int rank) {
            auto options = mode;
            options.self_test = false;
            options.deadline = 500ms;
            options.faults = hooks(rank, world - 1, [](auto& f) { f.drop_transfers_from = 7; });
            return options;
          },
          [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const ExactCalls calls(comm, engine, op);
            while (op.calls() < 7) calls.queue(600, op.calls());
            calls.expect_exact();
          });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
      const std::string silent = fmt::format("chunk 0 of rank {}", world - 1);
      for (int rank = 0; rank < world - 1; ++rank) {
        EXPECT_THAT(all[rank].text, AllOf(HasSubstr("0.5 s"), HasSubstr(silent), HasSubstr("leg")))
            << rank;
      }
    }
  }
}

TEST(CudaFaults, D06_ARankThatNeverBeginsIsNamedWithinTheDeadline) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3}) {
    for (const auto& mode : served_variants(small_options(), world)) {
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(mode));
      const auto begin = std::chrono::steady_clock::now();
      const auto all = failures(
          world, [&](int) { return with_deadline(500ms, mode); },
          [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const ExactCalls calls(comm, engine, op);
            calls.queue(600, 1);
            for (int call = 2; comm.rank() != comm.size() - 1 && call < 5; ++call) {
              calls.queue(600, call);  // several, whose stream waits all end
            }
            calls.expect_exact();
          });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
      const std::string late = "rank " + std::to_string(world - 1);
      for (int rank = 0; rank < world - 1; ++rank) {
        EXPECT_THAT(all[rank].text, AllOf(HasSubstr("0.5 s"), HasSubstr(late))) << rank;
      }
      EXPECT_EQ(all.back().text, "");
    }
  }
}

TEST(CudaFaults, AFailedCallPoisonsTheOpAndLaterCallsFailAtOnce) {
  ROWBAND_NEEDS_GPUS(1);
  const auto all = failures(
      2, [](int) { return with_deadline(500ms, small_options()); },
      [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const ExactCalls calls(comm, engine, op);
        if (comm.rank() == 1) return;
        calls.queue(600, 1);
        EXPECT_ANY_THROW(calls.expect_exact());
        const auto begin = std::chrono::steady_clock::now();
        try {
          calls.queue(600, 2);
          ADD_FAILURE() << "a poisoned op ran";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPoisoned);
          EXPECT_THAT(error.what(), HasSubstr("rank 1"));
        }
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
      });
  EXPECT_THAT(all[0].text, HasSubstr("rank 0 waited 0.5 s"));
  EXPECT_EQ(all[1].text, "");
}

// Of a rank that gave up, a peer that begins late takes no result; and what that rank had queued
// behind the failed call leaves the peer's earlier result alone.
TEST(CudaFaults, D06_ARankThatBeginsAfterItsPeerGaveUpFailsTooAndKeepsItsEarlierResult) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3}) {
    for (auto mode : served_variants(small_options(), world)) {
      if (mode.transport != Transport::kDirect) continue;  // copies that are queued are made
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(mode));
      const auto all = failures(
          world, [&](int) { return with_deadline(500ms, mode); },
          [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const ExactCalls calls(comm, engine, op);
            const Output kept = calls.queue(600, 1);
            calls.expect_exact();
            comm.barrier(Deadline::after(60s));
            if (comm.rank() == comm.size() - 1) {
              std::this_thread::sleep_for(1500ms);
              calls.check(kept, 1);
              calls.expect_exact();
            }
            for (int call = 2; call < 5; ++call) calls.queue(600, call);
            calls.expect_exact();
          });
      const std::string late = fmt::format("rank {}", world - 1);
      for (const auto& failure : all) {
        EXPECT_THAT(failure.text, AllOf(HasSubstr("waited 0.5 s"), HasSubstr(late)));
      }
    }
  }
}

TEST(CudaFaults, ACallThatCannotBeLaunchedFailsOnEveryRankAtOnce) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& mode : served_variants(small_options(), 2)) {
    const auto begin = std::chrono::steady_clock::now();
    const auto all = failures(
        2,
        [&](int rank) {
          auto options = mode;
          options.self_test = false;
          options.faults = hooks(rank, 1, [](auto& f) { f.throw_in_call = 6; });
          return options;
        },
        [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
          const ExactCalls calls(comm, engine, op);
          while (op.calls() < 6) calls.queue(600, op.calls());
          calls.expect_exact();
        });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    EXPECT_THAT(all[0].text, HasSubstr("rank 1 refused a call that rank 0 made"));
    EXPECT_THAT(all[1].text, AllOf(HasSubstr("could not queue a call"), HasSubstr("fault hook")));
  }
}

TEST(CudaFaults, ARefusedCallIsAnErrorForThePeerAndAllRefusingIsNone) {
  ROWBAND_NEEDS_GPUS(1);
  const auto all = failures(
      2, [](int) { return with_deadline(60s, small_options()); },
      [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const ExactCalls calls(comm, engine, op);
        EXPECT_THROW(op.run({}, calls.w()), Error);  // on both
        calls.queue(600, 2);
        calls.expect_exact();
        ActivationView misaligned = calls.x(500);
        misaligned.codes += comm.rank();
        try {
          op.run(misaligned, calls.w(), nullptr, nullptr, nullptr, calls.stream());
          EXPECT_EQ(comm.rank(), 0);
        } catch (const Error& error) {
          EXPECT_EQ(comm.rank(), 1);
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        }
        const auto begin = std::chrono::steady_clock::now();
        if (comm.rank() == 1) calls.queue(600, 3);  // the other, poisoned, makes none
        check(cudaStreamSynchronize(calls.stream()), "waiting for the refused calls");
        EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
      });
  for (const auto& failure : all) {
    EXPECT_THAT(failure.text, HasSubstr("rank 1 refused a call that rank 0 made"));
  }
}

// However far the one that refuses is ahead, its peer learns that it did.
TEST(CudaFaults, SeveralRefusedCallsAreAnErrorForALatePeer) {
  ROWBAND_NEEDS_GPUS(1);
  for (int ahead : {1, 2, 3, 4}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto all = failures(
        2, [](int) { return with_deadline(60s, small_options()); },
        [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
          const ExactCalls calls(comm, engine, op);
          for (int i = 0; comm.rank() == 1 && i < ahead; ++i) op.refuse(calls.stream());
          if (comm.rank() == 1) calls.queue(600, 2);
          if (comm.rank() == 0) std::this_thread::sleep_for(200ms);
          if (comm.rank() == 0) calls.queue(600, 1);
          calls.expect_exact();
        });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << ahead;
    for (const auto& failure : all) {
      EXPECT_THAT(failure.text, HasSubstr("rank 1 refused a call that rank 0 made")) << ahead;
    }
  }
}

TEST(CudaFaults, P01_GpusThatCannotReachOneAnotherAreNamed) {
  ROWBAND_NEEDS_GPUS(1);
  const auto all = failures(2, [](int rank) {
    auto options = small_options();
    options.faults = hooks(rank, 1, [](auto& f) { f.deny_peer_access = true; });
    return options;
  });
  for (const auto& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 1"), HasSubstr("cannot reach the memory")));
  }
}

TEST(CudaFaults, WhatIsNotServedIsRefusedInWordsBeforeAnythingIsAllocated) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  for (int world : {2, 9}) {
    for (const auto& mode : all_modes(small_options())) {
      const PlanSpec spec = GemmAllReduce::plan_spec(*engine, mode, world);
      const std::string why = engine->why_not_served(spec);
      if (why.empty()) continue;
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(mode));
      EXPECT_THAT(why,
                  AnyOf(HasSubstr("gather scale row"), HasSubstr("copy_engine"), HasSubstr("W=9")));
      if (world == 9) continue;
      const auto all = failures(world, [&](int) {
        auto options = mode;  // were the window reached, the hook would speak instead
        options.faults = hooks(0, 0, [](auto& f) { f.fail_window_allocation = true; });
        return options;
      });
      for (const auto& failure : all) {
        EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument);
        EXPECT_THAT(failure.text, HasSubstr(why));
      }
    }
  }
}

TEST(CudaFaults, L09_CloseIsIdempotentLocalAndSafeAfterAFailure) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& mode : served_variants(small_options(), 2)) {
    for (const bool fails : {false, true}) {
      SCOPED_TRACE(variant_name(mode) + (fails ? ", after a failure" : ""));
      const auto all = failures(
          2, [&](int) { return with_deadline(500ms, mode); },
          [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const ExactCalls calls(comm, engine, op);
            calls.queue(600, 1);
            calls.expect_exact();
            if (fails && comm.rank() == 0) {
              calls.queue(600, 2);
              EXPECT_ANY_THROW(calls.expect_exact());
            }
            comm.barrier(Deadline::after(60s));
            op.close();
            op.close();
            EXPECT_THAT(op.why_not(calls.x(600), calls.w()), HasSubstr("closed"));
            EXPECT_THROW(calls.run(600), Error);
          });
      for (const auto& failure : all) EXPECT_EQ(failure.text, "the op has been closed");
    }
  }
}

}  // namespace
}  // namespace rowband::cuda
