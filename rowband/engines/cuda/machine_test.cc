#include "rowband/engines/cuda/machine.h"

#include <gmock/gmock.h>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/bandwidth.h"
#include "rowband/engines/cuda/testing.h"

namespace rowband::cuda {
namespace {

using testing::HasSubstr;

TEST(GpuMachine, SaysWhyThereAreNoneExactlyWhereThereAreNone) {
  EXPECT_EQ(visible_gpus().empty(), !why_no_gpus().empty());
  EXPECT_EQ(static_cast<int>(visible_gpus().size()), device_count());
  EXPECT_EQ(driver_version() == "none" ? 0 : 1, device_count() > 0 ? 1 : 0);
  EXPECT_THAT(cuda_runtime_version(), testing::MatchesRegex("[0-9]+\\.[0-9]+"));
}

TEST(CudaMachine, AFailedCallLeavesNoErrorForALaterLaunch) {
  ROWBAND_NEEDS_GPUS(1);
  EXPECT_THROW(check(cudaSetDevice(-1), "choosing no device"), Error);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

TEST(CudaMachine, GpusAreDescribed) {
  ROWBAND_NEEDS_GPUS(1);
  bool hopper = false;
  for (const Gpu& gpu : visible_gpus()) {
    EXPECT_FALSE(gpu.name.empty());
    EXPECT_GT(gpu.multiprocessors, 0);
    EXPECT_GT(gpu.bytes, gpu.free_bytes);
    EXPECT_THAT(gpu.pci_address, testing::MatchesRegex("[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.0"));
    hopper = hopper || gpu.runs_the_kernels();
  }
  EXPECT_EQ(hopper, sees_hopper());
}

Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }

TEST(CudaMachine, BytesMoveBetweenTwoGpus) {
  ROWBAND_NEEDS_GPUS(2);
  if (!access(0, 1).possible || !access(1, 0).possible) GTEST_SKIP() << "GPUs 0 and 1 are apart";
  for (const auto rate : {copy_engine_rate, store_rate}) {
    const double small = rate(0, 1, 1 << 16, soon()), large = rate(0, 1, 64 << 20, soon());
    EXPECT_GT(small, 0.1);
    EXPECT_GT(large, small);  // starting a transfer costs more than 64 KiB of it
    EXPECT_LT(large, 2000);   // GB/s: faster than any link, so nothing was moved
  }
}

TEST(CudaMachine, D06_TransfersLongerThanTheDeadlineAreAnErrorThatNamesTheGpus) {
  ROWBAND_NEEDS_GPUS(2);
  if (!access(0, 1).possible) GTEST_SKIP() << "GPUs 0 and 1 are apart";
  try {
    copy_engine_rate(0, 1, 256 << 20, Deadline::after(std::chrono::nanoseconds(1)));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDeadline);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("GPU 0"), HasSubstr("GPU 1")));
  }
}

TEST(CudaMachine, OneGpuHasNoLinkToItself) {
  ROWBAND_NEEDS_GPUS(1);
  EXPECT_THROW(copy_engine_rate(0, 0, 1 << 20, soon()), Error);
}

}  // namespace
}  // namespace rowband::cuda
