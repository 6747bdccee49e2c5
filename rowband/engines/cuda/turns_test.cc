#include "rowband/engines/cuda/turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/comm/threads.h"

namespace rowband::cuda {
namespace {

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

TEST(Turns, RanksOfOneDeviceGoOneAfterTheOther) {
  std::vector<int> order;
  std::mutex mutex;
  run_ranks(5, [&](Communicator& comm) {
    take_turns(comm, 0, soon(), [&] {
      const std::lock_guard lock(mutex);
      order.push_back(comm.rank());
    });
  });
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

// The first ranks of both devices can only leave their step together.
TEST(Turns, RanksOfDifferentDevicesGoTogether) {
  std::atomic<int> begun[2] = {0, 0};
  run_ranks(4, [&](Communicator& comm) {
    take_turns(comm, comm.rank() % 2, soon(), [&] {
      const int turn = comm.rank() / 2;
      EXPECT_EQ(begun[1 - turn], turn == 0 ? 0 : 2);
      ++begun[turn];
      const Deadline deadline = soon();
      while (begun[turn] < 2 && !deadline.passed()) continue;
      EXPECT_EQ(begun[turn], 2);
    });
  });
}

// No machine has so many GPUs: the launch fails on both ranks, and each must know of the other's.
TEST(Turns, AFailedFirstLaunchIsAnErrorOfAllRanks) {
  run_ranks(2, [&](Communicator& comm) {
    try {
      choose_queue(comm, 999, nullptr, soon());
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      for (const char* part : {"first launch", "rank 0", "rank 1"}) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
      }
    }
  });
}

}  // namespace
}  // namespace rowband::cuda
