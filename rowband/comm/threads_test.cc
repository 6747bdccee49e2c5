#include "rowband/comm/threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "rowband/comm/conformance.h"

namespace rowband {
namespace {

using namespace std::chrono_literals;
namespace conformance = comm::conformance;
using conformance::expect_error;
using conformance::soon;

class ThreadSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(W01, ThreadSizes, ::testing::Range(1, 9));

TEST_P(ThreadSizes, W01_Gathers) {
  run_ranks(GetParam(), [](Communicator& comm) { conformance::check_all_gather(comm, 1 << 20); });
}

TEST_P(ThreadSizes, W01_SumsExactly) {
  run_ranks(GetParam(),
            [](Communicator& comm) { conformance::check_all_reduce_exact(comm, 300001); });
}

TEST_P(ThreadSizes, W01_SumsInRankOrderAndRoundsOnce) {
  run_ranks(GetParam(),
            [](Communicator& comm) { conformance::check_all_reduce_bits(comm, 100003); });
}

TEST_P(ThreadSizes, W01_SharesMemory) {
  run_ranks(GetParam(),
            [](Communicator& comm) { conformance::check_symmetric_memory(comm, 3 << 20); });
}

TEST(Threads, SizesThatCannotBeMadeAreRefused) {
  expect_error(ErrorCode::kInvalidArgument, {"0 threads", "1 to 64"},
               [] { make_thread_communicators(0); });
  expect_error(ErrorCode::kInvalidArgument, {"65 threads"}, [] { make_thread_communicators(65); });
  EXPECT_EQ(make_thread_communicators(64).size(), 64u);
}

TEST(Threads, R12_InterleavedCollectivesStayApart) {
  run_ranks(4, [](Communicator& comm) { conformance::check_interleaving(comm, 5000); });
}

TEST(Threads, D01_AllocationFailsOnOneRankOnly) {
  run_ranks(4, [](Communicator& comm) { conformance::check_allocation_failure(comm, 1); });
}

TEST(Threads, D01_ImpossibleSizesFailOnEveryRank) {
  run_ranks(2, [](Communicator& comm) {
    expect_error(ErrorCode::kOutOfMemory, {"rank 0: window allocation failed", "rank 1: "},
                 [&] { comm.allocate_symmetric(std::size_t{1} << 62, soon()); });
    expect_error(ErrorCode::kDisagreement, {"bytes: rank 0 has 1, rank 1 has 2"},
                 [&] { comm.allocate_symmetric(comm.rank() == 0 ? 1 : 2, soon()); });
  });
}

TEST(Threads, D03_DifferentCountsAreNamedAndTheGroupGoesOn) {
  run_ranks(2, [](Communicator& comm) { conformance::check_count_disagreement(comm); });
  run_ranks(5, [](Communicator& comm) { conformance::check_count_disagreement(comm); });
}

TEST(Threads, D03_DifferentGatherSizesAreNamed) {
  run_ranks(3, [](Communicator& comm) {
    char send[8] = {};
    char recv[24] = {};
    expect_error(ErrorCode::kDisagreement, {"all_gather", "rank 0 has 4", "rank 2 has 8"},
                 [&] { comm.all_gather(send, recv, comm.rank() == 2 ? 8 : 4, soon()); });
  });
}

TEST(Threads, InvalidBuffersFailOnEveryRank) {
  run_ranks(3, [](Communicator& comm) {
    Bf16 value;
    expect_error(ErrorCode::kInvalidArgument, {"rank 1 passed a negative count"},
                 [&] { comm.all_reduce(&value, comm.rank() == 1 ? -3 : 1, soon()); });
  });
}

TEST(Threads, RanksInDifferentCollectivesAreTold) {
  run_ranks(2, [](Communicator& comm) {
    Bf16 value;
    expect_error(ErrorCode::kDisagreement, {"rank 0 called all_reduce", "rank 1 all_gather"}, [&] {
      if (comm.rank() == 0) {
        comm.all_reduce(&value, 1, soon());
      } else {
        comm.barrier(soon());
      }
    });
  });
}

TEST(Threads, A03_GroupsDoNotMix) {
  auto whole = make_thread_communicators(4);
  auto low = make_thread_communicators(2);
  auto high = make_thread_communicators(2);
  std::vector<std::jthread> threads;
  std::atomic<int> right{0};
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto& group =
          rank < 2 ? low[static_cast<std::size_t>(rank)] : high[static_cast<std::size_t>(rank - 2)];
      for (int round = 0; round < 200; ++round) {
        Bf16 in_group = to_bf16(std::exp2(static_cast<float>(rank)));
        Bf16 in_world = in_group;
        group->all_reduce(&in_group, 1, soon());
        whole[static_cast<std::size_t>(rank)]->all_reduce(&in_world, 1, soon());
        const float want = rank < 2 ? 3.0f : 12.0f;
        if (to_float(in_group) == want && to_float(in_world) == 15.0f) ++right;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right.load(), 4 * 200);
}

TEST(Threads, N03_ItIsASum) {
  for (const int size : {2, 4, 8}) {
    run_ranks(size, [](Communicator& comm) {
      std::vector<Bf16> data(128, to_bf16(256.0f));
      comm.all_reduce(data.data(), 128, soon());
      for (const Bf16& value : data) {
        ASSERT_EQ(to_float(value), 256.0f * static_cast<float>(comm.size()));
      }
    });
  }
}

TEST(Threads, L05_TwoGroupsAtOnceAreBothExact) {
  std::jthread other([] {
    run_ranks(2, [](Communicator& comm) { conformance::check_interleaving(comm, 1000); });
  });
  run_ranks(2, [](Communicator& comm) { conformance::check_interleaving(comm, 1000); });
}

TEST(Threads, DeadlineNamesTheRanksThatHadNotComeAndTheGroupStaysFailed) {
  run_ranks(4, [](Communicator& comm) {
    const auto hasty = [] { return Deadline::after(100ms); };
    // Ranks 1 and 3 come too late, and get the same reason.
    if (comm.rank() % 2 == 1) std::this_thread::sleep_for(400ms);
    const auto first =
        expect_error(ErrorCode::kDeadline, {"all_gather", "0.1 s", "ranks 1, 3 had not come"},
                     [&] { comm.barrier(hasty()); });
    Bf16 value;
    const auto later =
        expect_error(ErrorCode::kDeadline, {}, [&] { comm.all_reduce(&value, 1, soon()); });
    ASSERT_EQ(first, later);
  });
}

TEST(Threads, D06_ARankThatIsGoneFailsTheOthersAtOnce) {
  auto comms = make_thread_communicators(3);
  const auto start = std::chrono::steady_clock::now();
  std::jthread leaver([&] {
    std::this_thread::sleep_for(50ms);
    comms[2].reset();
  });
  std::jthread waiter([&] {
    expect_error(ErrorCode::kPeerLost, {"rank 2 gone"}, [&] { comms[1]->barrier(soon()); });
  });
  expect_error(ErrorCode::kPeerLost, {"rank 2 gone"}, [&] { comms[0]->barrier(soon()); });
  leaver.join();
  waiter.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  EXPECT_FALSE(comms[0]->peer_alive(2));
  EXPECT_TRUE(comms[0]->peer_alive(1));
  expect_error(ErrorCode::kInvalidArgument, {"peer_alive(3)"}, [&] { comms[0]->peer_alive(3); });
}

// A failing rank takes its buffer away at once; whoever still reads it would read freed memory.
TEST(Threads, BuffersAreNotReadAfterAFailure) {
  std::mt19937 random(3);
  int failures = 0;
  for (int round = 0; round < 300; ++round) {
    const auto budget = std::chrono::microseconds(random() % 400);
    try {
      run_ranks(4, [&](Communicator& comm) {
        std::vector<Bf16> data(40000, to_bf16(1.0f));
        const auto own = comm.rank() == 1 ? Deadline::after(budget) : soon();
        comm.all_reduce(data.data(), static_cast<std::int64_t>(data.size()), own);
        ASSERT_EQ(to_float(data[0]), 4.0f);
      });
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kDeadline) << error.what();
      ++failures;
    }
  }
  EXPECT_GT(failures, 0);
}

TEST(Threads, L09_FailedGroupsAreReleasedInAnyOrder) {
  for (int first = 0; first < 3; ++first) {
    auto comms = make_thread_communicators(3);
    expect_error(ErrorCode::kDeadline, {"ranks 1, 2"},
                 [&] { comms[0]->barrier(Deadline::after(1ms)); });
    comms[static_cast<std::size_t>(first)].reset();
    comms[static_cast<std::size_t>(first)].reset();
  }
}

TEST(Threads, L09_WindowsOutliveTheirCommunicators) {
  std::vector<std::unique_ptr<SymmetricMemory>> windows(2);
  run_ranks(2, [&](Communicator& comm) {
    windows[static_cast<std::size_t>(comm.rank())] = comm.allocate_symmetric(10000, soon());
  });
  windows[0].reset();
  for (int rank = 0; rank < 2; ++rank) windows[1]->part(rank)[9999] = std::byte{7};
  EXPECT_EQ(windows[1]->part(0)[9999], std::byte{7});
}

TEST(RunRanks, D08_RethrowsTheErrorThatCameFirst) {
  for (int round = 0; round < 50; ++round) {
    try {
      run_ranks(4, [](Communicator& comm) {
        if (comm.rank() == 2) throw std::out_of_range("the root cause");
        comm.barrier(soon());
      });
      FAIL() << "nothing was thrown";
    } catch (const std::out_of_range& error) {
      EXPECT_STREQ(error.what(), "the root cause");
    }
  }
}

TEST(RunRanks, ARankThatReturnsEarlyFailsThoseThatWaitForIt) {
  expect_error(ErrorCode::kPeerLost, {"rank 0 gone"}, [] {
    run_ranks(2, [](Communicator& comm) {
      if (comm.rank() == 1) comm.barrier(soon());
    });
  });
}

}  // namespace
}  // namespace rowband
