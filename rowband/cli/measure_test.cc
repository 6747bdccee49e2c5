#include "rowband/cli/measure.h"

#include <gtest/gtest.h>

#include <thread>

#include "rowband/comm/threads.h"

namespace rowband::cli {
namespace {

using std::chrono::milliseconds;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

TEST(Measure, CallTimeIsFromTheLastBeginToTheLastEnd) {
  const Interval ranks[] = {{1'000'000, 9'000'000}, {3'000'000, 8'000'000}, {2'500'000, 9'500'000}};
  const CallTime time = call_time(ranks);
  EXPECT_DOUBLE_EQ(time.ms, 6.5);
  EXPECT_DOUBLE_EQ(time.skew_ms, 2.0);
}

TEST(Measure, MedianOfOddEvenAndNone) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({}), 0);
}

// The median time and skew of a collective call that ends 400 ms after its last rank came, when
// rank 1 comes `late`.
CallTime measure_with_late_rank(milliseconds late) {
  std::vector<double> ms, skew_ms;
  run_ranks(2, [&](Communicator& comm) {
    for (int i = 0; i < 5; ++i) {
      comm.barrier(soon());
      Interval own;
      if (comm.rank() == 1) std::this_thread::sleep_for(late);
      own.begin_ns = now_ns();
      comm.barrier(soon());  // a rank waits in the call for its peers
      std::this_thread::sleep_for(milliseconds(400));
      own.end_ns = now_ns();
      Interval all[2];
      comm.all_gather(&own, all, sizeof own, soon());
      if (comm.rank() != 0) continue;
      const CallTime time = call_time(all);
      ms.push_back(time.ms);
      skew_ms.push_back(time.skew_ms);
    }
  });
  return {median(ms), median(skew_ms)};
}

TEST(Measure, C03_ALateRankIsSkewAndNotTimeOfTheCall) {
  const CallTime even = measure_with_late_rank(milliseconds(0));
  const CallTime late = measure_with_late_rank(milliseconds(30));
  EXPECT_NEAR(late.ms, even.ms, 0.05 * even.ms);
  EXPECT_GE(late.skew_ms, 29.0);
  EXPECT_LT(even.skew_ms, 29.0);
}

TEST(Measure, C03_TheMaximumOverRanksCounts) {
  run_ranks(3, [](Communicator& comm) {
    const CallTime time = time_call(comm, soon(), [&] {
      std::this_thread::sleep_for(milliseconds(comm.rank() == 2 ? 600 : 1));
    });
    // From the last begin, so less than 600 by the skew of a loaded machine.
    EXPECT_GE(time.ms, 100.0) << "on rank " << comm.rank();
  });
}

}  // namespace
}  // namespace rowband::cli
