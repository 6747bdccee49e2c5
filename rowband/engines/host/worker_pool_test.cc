#include "rowband/engines/host/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <limits>
#include <set>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace rowband::host {
namespace {

TEST(WorkerPool, RunsTheWorkOncePerWorkerAndReturnsWhenAllAreDone) {
  for (int threads : {1, 2, 3, 8}) {
    WorkerPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    std::vector<int> runs(threads);  // not atomic: run() orders what it did before what follows
    for (int round = 1; round <= 500; ++round) {
      pool.run([&](int worker) { ++runs.at(worker); });
      for (int worker = 0; worker < threads; ++worker) ASSERT_EQ(runs[worker], round);
    }
  }
}

TEST(WorkerPool, WorkersRunAtTheSameTimeAndTheCallerIsWorkerZero) {
  WorkerPool pool(4);
  std::barrier all_here(4);  // passed only when all four run together
  std::vector<std::thread::id> ids(4);
  pool.run([&](int worker) {
    ids[worker] = std::this_thread::get_id();
    all_here.arrive_and_wait();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 4u);
}

TEST(WorkerPool, EndsWithoutEverHavingRun) {
  for (int i = 0; i < 50; ++i) WorkerPool pool(4);
}

TEST(WorkerPool, PoolsSideBySideDoNotMix) {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([] {
      WorkerPool pool(3);
      for (int round = 0; round < 200; ++round) {
        std::atomic<int> sum{0};
        pool.run([&](int worker) { sum += 1 << (8 * worker); });
        ASSERT_EQ(sum, 0x010101);
      }
    });
  }
  for (auto& caller : callers) caller.join();
}

#if defined(__SSE2__)
// Halving the smallest normal number, by every worker.
std::vector<float> halves(WorkerPool& pool) {
  std::vector<float> results(pool.threads());
  pool.run([&](int worker) {
    const volatile float smallest = std::numeric_limits<float>::min();
    const volatile float half = smallest * 0.5f;
    results[worker] = half;
  });
  return results;
}

TEST(WorkerPool, Q13_CallersWhoFlushSubnormalsChangeNoWorkersArithmetic) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ
  std::vector<float> results;
  {
    WorkerPool pool(3);
    results = halves(pool);
  }
  const bool kept = (_mm_getcsr() & 0x8040) == 0x8040;
  _mm_setcsr(before);
  EXPECT_TRUE(kept);  // what the caller had set is the caller's
  for (float result : results) EXPECT_EQ(result, 0x1p-127f);
}
#endif

}  // namespace
}  // namespace rowband::host
