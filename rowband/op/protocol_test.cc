// Repeated calls: window reuse, changing shapes, wrap of the epoch, skewed ranks, groups side by
// side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "rowband/engines/host/window.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/operands.h"

namespace rowband {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kManyCalls = 300;
#else
constexpr int kManyCalls = 10000;
#endif

TEST(Protocol, R01_ManyCallsOfAlternatingShapes) {
  for (int world : {4, 8}) {
    const int calls = kManyCalls / world;
    with_ops(world, exact_options(512, 64, 128), [&](Communicator& comm, GemmAllReduce& op) {
      const ExactWeight w(64, 128);
      for (int call = 1; call <= calls; ++call) {
        run_exact(comm, op, w, call % 7 == 0 ? 511 : 16 + call % 5, call);
      }
    });
  }
}

TEST(Protocol, R01_ManyCallsOfEveryMode) {
  for (const auto& options : all_modes(exact_options(300, 64, 128))) {
    with_ops(2, options, [&](Communicator& comm, GemmAllReduce& op) {
      const ExactWeight w(64, 128);
      std::minstd_rand same_on_all_ranks(5);
      for (int call = 1; call <= kManyCalls / 10; ++call) {
        run_exact(comm, op, w, same_on_all_ranks() % 301, call);
      }
    });
  }
}

TEST(Protocol, R04_AResultStaysUntouchedThroughTheNextCalls) {
  for (int slots : {1, 2, 3}) {
    for (auto options : all_modes(exact_options(735, 96, 128))) {
      options.slots = slots;
      with_ops(4, options, [&](Communicator& comm, GemmAllReduce& op) {
        const ExactWeight w(96, 128);
        const ExactActivations first(735, 128, comm.rank(), 1);
        const Output kept = op.run(first.view(), w.view());
        for (int call = 2; call < 2 + slots - 1; ++call) {
          run_exact(comm, op, w, 735, call);
          const std::string difference = exact_difference(kept, 735, 128, 4, 1);
          if (!difference.empty()) throw std::runtime_error("slot " + difference);
        }
      });
    }
  }
}

TEST(Protocol, R10_TheCallNumberPasses32Bits) {
  for (std::int64_t wrap : {std::int64_t{1} << 31, std::int64_t{1} << 32, std::int64_t{1} << 33}) {
    auto faults = std::make_shared<FaultHooks>();
    faults->first_call = wrap - 5;
    for (auto options : all_modes(exact_options(600, 64, 128))) {
      options.faults = faults;
      with_ops(3, options, [](Communicator& comm, GemmAllReduce& op) {
        const ExactWeight w(64, 128);
        for (int call = 1; call <= 20; ++call)
          run_exact(comm, op, w, call % 3 == 0 ? 600 : 10, call);
      });
    }
  }
}

TEST(Protocol, R10_AnEpochIsNeverTheFreshFlag) {
  EXPECT_EQ(host::epoch_of(1), 1u);
  EXPECT_EQ(host::epoch_of((std::int64_t{1} << 32) - 1), 0xFFFFFFFFu);
  EXPECT_EQ(host::epoch_of(std::int64_t{1} << 32), 1u);
  EXPECT_EQ(host::epoch_of((std::int64_t{1} << 33) - 2), 0xFFFFFFFFu);
  EXPECT_EQ(host::epoch_of((std::int64_t{1} << 33) - 1), 1u);
}

TEST(Protocol, R12_D_CollectivesAndCallsInterleaveUnderSkew) {
  with_ops(3, exact_options(128, 64, 128), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(64, 128);
    std::minstd_rand random(comm.rank() + 1);
    const auto deadline = [] { return Deadline::after(std::chrono::seconds(30)); };
    for (int call = 1; call <= kManyCalls / 20; ++call) {
      if (random() % 10 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
      run_exact(comm, op, w, 1 + call % 128, call);
      if (call % 3 == 0) comm.barrier(deadline());
      if (call % 4 == 0) {
        std::vector<Bf16> ones(64, to_bf16(1.0f));
        comm.all_reduce(ones.data(), 64, deadline());
        for (Bf16 value : ones) ASSERT_EQ(to_float(value), 3.0f);
      }
    }
  });
}

TEST(Protocol, ARandomDelayBeforeEveryHandOverChangesNothing) {
  auto faults = std::make_shared<FaultHooks>();
  faults->jitter = std::chrono::microseconds(200);
  for (auto options : all_modes(exact_options(1100, 64, 128))) {
    options.faults = faults;
    with_ops(
        3, options,
        [](Communicator& comm, GemmAllReduce& op) {
          const ExactWeight w(64, 128);
          for (int call = 1; call <= 60; ++call)
            run_exact(comm, op, w, call % 2 == 0 ? 1100 : 40, call);
        },
        2);
  }
}

// A rank that owns no rows is done with a call before its peers are; refusing the next calls must
// not take from them what they still have to read of it.
TEST(Protocol, CallsThatAllRefuseMayFollowOneThatAPeerIsStillIn) {
  with_ops(8, exact_options(64, 64, 128), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(64, 128);
    for (int call = 1; call <= kManyCalls / 20; ++call) {
      run_exact(comm, op, w, call % 3 == 0 ? 0 : 1, call);
      op.refuse();
      op.refuse();
    }
  });
}

TEST(Protocol, L05_TwoOpsAndTwoGroupsAtOnceDoNotMix) {
  std::vector<std::thread> groups;
  for (int group = 0; group < 2; ++group) {
    groups.emplace_back([group] {
      run_ranks(2, [group](Communicator& comm) {
        const ExactWeight w(64, 128);
        const auto engine = test_engine(comm.rank());
        const auto one = GemmAllReduce::create(comm, engine, exact_options(64, 64, 128));
        const auto two = GemmAllReduce::create(comm, engine, exact_options(300, 64, 128));
        for (int call = 1; call <= kManyCalls / 20; ++call) {
          run_exact(comm, *one, w, 1 + call % 64, call + 1000 * group);
          run_exact(comm, *two, w, call % 300, call + 500);
        }
      });
    });
  }
  for (auto& thread : groups) thread.join();
}

TEST(Protocol, R06_OpsRebuiltWithOtherCapacitiesAreExact) {
  run_ranks(4, [](Communicator& comm) {
    const ExactWeight w(64, 128);
    const auto engine = test_engine(comm.rank());
    std::vector<std::vector<char>> history(comm.rank() * 3, std::vector<char>(1 << 20));
    for (std::int64_t max_rows : {64, 700, 65, 1}) {
      const auto op = GemmAllReduce::create(comm, engine, exact_options(max_rows, 64, 128));
      for (int call = 1; call <= 5; ++call) run_exact(comm, *op, w, max_rows, call);
    }
  });
}

TEST(Protocol, EightRanksOnFewCoresFinishPromptly) {
  const auto begin = std::chrono::steady_clock::now();
  with_ops(8, exact_options(256, 64, 128), [](Communicator& comm, GemmAllReduce& op) {
    const ExactWeight w(64, 128);
    for (int call = 1; call <= 100; ++call) run_exact(comm, op, w, 256, call);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace rowband
