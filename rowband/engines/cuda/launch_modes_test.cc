// The engine under variables that CUDA reads at its first use, so each in a process of its own: it
// works exactly, or is refused at construction in words that name the variable.
#include <gmock/gmock.h>

#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/testing/child.h"

namespace rowband::cuda {
namespace {

using testing::HasSubstr;

using Variables = std::map<std::string, std::optional<std::string>>;

constexpr int kExact = 0, kRefused = 3;

ChildResult run(int world, int devices, const Variables& variables, bool other_work = false,
                const char* transport = "direct") {
  std::vector<std::string> command{beside_this_program("cuda_launch_mode_program"),
                                   std::to_string(world), std::to_string(devices), transport};
  if (other_work) command.push_back("other-work");
  return run_child(command, variables, std::chrono::seconds(60));
}

void expect_exact(const ChildResult& child) {
  EXPECT_FALSE(child.timed_out) << child.output;
  EXPECT_EQ(child.exit_status, kExact) << child.output;
}

void expect_refused(const ChildResult& child, const char* words) {
  EXPECT_FALSE(child.timed_out) << child.output;
  EXPECT_EQ(child.exit_status, kRefused) << child.output;
  EXPECT_THAT(child.output, HasSubstr(words));
}

TEST(CudaLaunchModes, G09_BlockingLaunchesOfOneRankPerGpu) {
  ROWBAND_NEEDS_GPUS(2);
  expect_exact(run(2, 2, {{"CUDA_LAUNCH_BLOCKING", "1"}}));
}

TEST(CudaLaunchModes, G09_BlockingLaunchesAreRefusedByTheCopyEngine) {
  ROWBAND_NEEDS_GPUS(2);
  expect_refused(run(2, 2, {{"CUDA_LAUNCH_BLOCKING", "1"}}, false, "copy_engine"),
                 "unset CUDA_LAUNCH_BLOCKING");
}

TEST(CudaLaunchModes, G10_TheCopyEngineWithOneQueueAndWithMany) {
  ROWBAND_NEEDS_GPUS(2);
  for (const char* queues : {"1", "32"}) {
    expect_exact(run(2, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", queues}}, true, "copy_engine"));
  }
}

TEST(CudaLaunchModes, G09_BlockingLaunchesOfRanksThatShareAGpuAreRefused) {
  ROWBAND_NEEDS_GPUS(1);
  expect_refused(run(2, 1, {{"CUDA_LAUNCH_BLOCKING", "1"}}), "CUDA_LAUNCH_BLOCKING to be unset");
}

TEST(CudaLaunchModes, G10_OneQueuePerGpuIsEnoughForOneRank) {
  ROWBAND_NEEDS_GPUS(2);
  expect_exact(run(2, 2, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, true));
}

TEST(CudaLaunchModes, G10_OneQueueForRanksThatShareAGpuIsRefused) {
  ROWBAND_NEEDS_GPUS(1);
  expect_refused(run(2, 1, {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}),
                 "CUDA_DEVICE_MAX_CONNECTIONS to be at least the number of their streams (32");
}

TEST(CudaLaunchModes, G10_ManyQueues) {
  ROWBAND_NEEDS_GPUS(1);
  expect_exact(run(8, gpus(), {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}}, true));
}

TEST(CudaLaunchModes, G10_ModulesLoadedLazilyAndAtOnce) {
  ROWBAND_NEEDS_GPUS(1);
  for (const char* loading : {"LAZY", "EAGER"}) {
    for (int devices = 1; devices <= gpus(); ++devices) {
      expect_exact(run(2, devices, {{"CUDA_MODULE_LOADING", loading}}));
    }
    if (gpus() > 1) {
      expect_exact(run(2, 2, {{"CUDA_MODULE_LOADING", loading}}, false, "copy_engine"));
    }
  }
}

TEST(CudaLaunchModes, P06_NoVisibleDeviceIsAnErrorInWords) {
  for (const char* none : {"", "-1", "MIG-00000000-0000-0000-0000-000000000000", "abc"}) {
    const auto child = run(1, 1, {{"CUDA_VISIBLE_DEVICES", none}});
    SCOPED_TRACE(none);
    expect_refused(child, "CUDA_VISIBLE_DEVICES");
  }
}

TEST(CudaLaunchModes, P06_AGpuChosenByItsNumberOrItsName) {
  ROWBAND_NEEDS_GPUS(1);
  for (int device = 0; device < gpus(); ++device) {
    cudaDeviceProp properties;
    ASSERT_EQ(cudaGetDeviceProperties(&properties, device), cudaSuccess);
    std::string uuid = "GPU-";
    for (int i = 0; i < 16; ++i) {
      char digits[3];
      std::snprintf(digits, sizeof digits, "%02x",
                    static_cast<unsigned char>(properties.uuid.bytes[i]));
      if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
      uuid += digits;
    }
    expect_exact(run(2, 1, {{"CUDA_VISIBLE_DEVICES", uuid}}));
    expect_exact(run(2, 1, {{"CUDA_VISIBLE_DEVICES", std::to_string(device)}}));
  }
}

}  // namespace
}  // namespace rowband::cuda
