// Device memory: how much, whether there is room, that none is taken late and all comes back; and
// which devices serve. Skipped, with a message, without a GPU.
#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <mutex>
#include <random>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/window.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/testing/open_files.h"

namespace rowband::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(CudaMemory, O01_NoRoomNamesNeededAndFreeBytesOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  const auto options = exact_options(16384, 7168, 128);
  const std::int64_t window = GemmAllReduce::window_bytes(*engine_for(0, 4, gpus()), options, 4);
  EXPECT_GT(window, 2 * 224ll << 20);  // two slots of 16384 x 7168 bf16
  const std::int64_t needed = window * ((4 + gpus() - 1) / gpus());  // of the ranks of one GPU
  int refused = 0;
  std::mutex mutex;
  run_ranks(4, [&](Communicator& comm) {
    auto own = options;
    auto faults = std::make_shared<FaultHooks>();
    if (comm.rank() == 2) faults->available_bytes = needed - 1;
    own.faults = faults;
    const auto engine = engine_for(comm.rank(), 4, gpus());
    check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
    comm.barrier(Deadline::after(std::chrono::seconds(20)));
    const std::int64_t before = free_bytes();
    try {
      GemmAllReduce::create(comm, engine, own);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 2"), HasSubstr(std::to_string(window)),
                        HasSubstr(std::to_string(needed)), HasSubstr(std::to_string(needed - 1))));
      const std::lock_guard lock(mutex);
      ++refused;
    }
    EXPECT_EQ(free_bytes(), before);  // refused before anything was taken
    comm.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  EXPECT_EQ(refused, 4);
}

TEST(CudaMemory, O01_MoreThanTheGpuHas) {
  ROWBAND_NEEDS_GPUS(1);
  run_ranks(2, [](Communicator& comm) {
    try {
      GemmAllReduce::create(comm, engine_for(comm.rank(), 2, gpus()),
                            exact_options(std::int64_t{1} << 24, 7168, 128));
      ADD_FAILURE() << "a window of half a terabyte";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
      EXPECT_THAT(error.what(), HasSubstr("bytes free"));
    }
  });
}

TEST(CudaMemory, O02_MoreRowsThanTheWindowHoldsAreRefusedAndNothingIsWritten) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(2, gpus(), exact_options(4681, 7168, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls calls(comm, engine, op);
                 const Output before = calls.queue(4681, 1);
                 EXPECT_FALSE(op.supports(16384));
                 EXPECT_THROW(calls.run(16384), Error);
                 calls.check(before, 1);
                 EXPECT_THAT(op.why_not_rows(16384), AllOf(HasSubstr("16384"), HasSubstr("4681")));
                 calls.queue(4681, 2);
                 calls.expect_exact();
               });
}

TEST(CudaMemory, O03_CallsTakeNoMemory) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& options : served_variants(exact_options(1000, 272, 128), 2)) {
    with_gpu_ops(2, gpus(), options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      const ExactCalls calls(comm, engine, op);
      comm.barrier(Deadline::after(std::chrono::seconds(20)));
      const MemoryWatch watch(engine.device());
      comm.barrier(Deadline::after(std::chrono::seconds(20)));
      std::minstd_rand same_on_all_ranks(7);
      for (int call = 1; call <= 1000; ++call) calls.queue(1 + same_on_all_ranks() % 1000, call);
      calls.expect_exact();
      comm.barrier(Deadline::after(std::chrono::seconds(20)));
      watch.expect_none_taken();
      comm.barrier(Deadline::after(std::chrono::seconds(20)));
    });
  }
}

// What is free of every GPU, and how many files are open.
struct Held {
  std::vector<std::int64_t> free;
  std::ptrdiff_t files = open_files();

  Held() {
    for (int device = 0; device < gpus(); ++device) {
      const DeviceScope scope(device);
      free.push_back(free_bytes());
    }
  }
};

// `round` several times, the first few of which may take memory for good.
void expect_all_given_back(int rounds, const std::function<void()>& round) {
  for (int i = 0; i < 10; ++i) round();
  const Held before;
  for (int i = 10; i < rounds; ++i) round();
  const Held after;
  for (std::size_t device = 0; device < before.free.size(); ++device) {
    EXPECT_NEAR(static_cast<double>(after.free[device]), static_cast<double>(before.free[device]),
                2 << 20);
  }
  EXPECT_LE(after.files, before.files);
}

TEST(CudaMemory, L07_OpsGiveTheirMemoryBack) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& mode : served_variants(exact_options(32768, 1024, 128), 2)) {
    GemmAllReduceOptions options = mode;
    options.self_test = false;
    expect_all_given_back(30, [&] {
      with_gpu_ops(2, gpus(), options, [](Communicator&, Engine&, GemmAllReduce& op) {
        EXPECT_GT(op.window_bytes(), 128 << 20);
      });
    });
  }
}

TEST(CudaMemory, L07_AThousandWindowsGiveTheirMemoryBack) {
  ROWBAND_NEEDS_GPUS(1);
  run_ranks(2, [](Communicator& comm) {
    const int device = comm.rank() % gpus();
    const DeviceScope scope(device);
    const auto deadline = [] { return Deadline::after(std::chrono::seconds(20)); };
    const auto round = [&] {
      make_window(comm, 256u << 20, device, nullptr, deadline());
      comm.barrier(deadline());
    };
    if (comm.rank() == 0) return expect_all_given_back(1000, round);
    for (int i = 0; i < 1000; ++i) round();
  });
}

TEST(CudaMemory, B01_AGpuOfAnotherArchitectureIsNamedWithBoth) {
  EXPECT_EQ(why_not_built_for("GPU 0 (H200)", 9, 0), "");
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {10, 0}, {12, 1}}) {
    EXPECT_EQ(why_not_built_for("GPU 3 (Other)", major, minor),
              "GPU 3 (Other) is sm_" + std::to_string(major) + std::to_string(minor) +
                  "; the kernels are built for sm_90a");
  }
}

TEST(CudaMemory, P06_ADeviceThatIsNotThereIsNamed) {
  ROWBAND_NEEDS_GPUS(1);
  EngineOptions options;
  options.device = 99;
  try {
    make_cuda_engine(options);
    ADD_FAILURE() << "an engine on GPU 99";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr("99"));
  }
}

}  // namespace
}  // namespace rowband::cuda
