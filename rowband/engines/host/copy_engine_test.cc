#include "rowband/engines/host/copy_engine.h"

#include <gtest/gtest.h>

#include <latch>
#include <numeric>
#include <vector>

namespace rowband::host {
namespace {

TEST(CopyEngine, DoesJobsInOrderOnAThreadOfItsOwn) {
  CopyEngine engine;
  std::vector<int> order;  // not atomic: drain() orders what was done before what follows
  std::thread::id id;
  for (int i = 0; i < 1000; ++i) {
    engine.enqueue([&, i] {
      order.push_back(i);
      id = std::this_thread::get_id();
    });
  }
  engine.drain();
  std::vector<int> want(1000);
  std::iota(want.begin(), want.end(), 0);
  EXPECT_EQ(order, want);
  EXPECT_NE(id, std::this_thread::get_id());
}

TEST(CopyEngine, DrainWaitsForTheJobInProgressAndCanBeRepeated) {
  CopyEngine engine;
  engine.drain();  // nothing queued
  for (int round = 0; round < 200; ++round) {
    bool done = false;
    std::latch begun(1);
    engine.enqueue([&] {
      begun.count_down();
      std::this_thread::yield();
      done = true;
    });
    begun.wait();  // the queue is empty, the job is not done
    engine.drain();
    ASSERT_TRUE(done);
  }
}

TEST(CopyEngine, CancelForgetsWhatHasNotBegun) {
  CopyEngine engine;
  std::latch begun(1), go(1);
  int first = 0, others = 0, later = 0;
  engine.enqueue([&] {
    begun.count_down();
    go.wait();
    ++first;
  });
  for (int i = 0; i < 5; ++i) engine.enqueue([&] { ++others; });
  begun.wait();
  engine.cancel();
  engine.enqueue([&] { ++later; });
  go.count_down();
  engine.drain();
  EXPECT_EQ(first, 1);
  EXPECT_EQ(others, 0);
  EXPECT_EQ(later, 1);
}

TEST(CopyEngine, TheDestructorFinishesWhatIsQueued) {
  int done = 0;
  {
    CopyEngine engine;
    std::latch go(1);
    engine.enqueue([&] { go.wait(); });
    for (int i = 0; i < 100; ++i) engine.enqueue([&] { ++done; });
    go.count_down();
  }
  EXPECT_EQ(done, 100);
}

TEST(CopyEngine, EndsWithoutEverHavingWorked) {
  for (int i = 0; i < 50; ++i) CopyEngine engine;
}

}  // namespace
}  // namespace rowband::host
