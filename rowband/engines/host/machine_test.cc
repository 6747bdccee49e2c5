#include "rowband/engines/host/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "rowband/engines/host/affinity_test_support.h"

namespace rowband::host {
namespace {

TEST(Machine, X01_AllowedCoresAreThoseOfTheAffinityMask) {
  const auto cores = own_cores();
  EXPECT_EQ(allowed_cores(), static_cast<int>(cores.size()));
  for (int core : cores) {
    on_cores({core}, [=] {
      EXPECT_EQ(allowed_cores(), 1);
      EXPECT_EQ(allowed_cores_text(), std::to_string(core));
      EXPECT_EQ(own_cores(), std::vector<int>{core});  // looking changes nothing
    });
  }
  EXPECT_EQ(own_cores(), cores);
}

TEST(Machine, TheTextIsTheKernelsList) {
  EXPECT_EQ(allowed_cores_text(), cores_of_threads().begin()->second);
  const auto cores = own_cores();
  // Every other core, and all but one: lists with gaps and with ranges.
  std::vector<int> others;
  for (std::size_t i = 0; i < cores.size(); i += 2) others.push_back(cores[i]);
  for (auto some :
       {others, std::vector<int>(cores.begin(), cores.begin() + (cores.size() + 1) / 2)}) {
    on_cores(some, [&] {
      std::ifstream status("/proc/thread-self/status");
      std::string line, kernels;
      while (std::getline(status, line)) {
        if (line.rfind("Cpus_allowed_list:", 0) == 0) {
          kernels = line.substr(line.find_last_of(" \t") + 1);
        }
      }
      EXPECT_EQ(allowed_cores_text(), kernels);
      EXPECT_EQ(allowed_cores(), static_cast<int>(some.size()));
    });
  }
}

TEST(Machine, AvailableMemoryIsBetweenNothingAndAllOfIt) {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::int64_t total_kib = 0;
  meminfo >> key >> total_kib;
  ASSERT_EQ(key, "MemTotal:");
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LE(available_memory(), total_kib * 1024);
}

}  // namespace
}  // namespace rowband::host
