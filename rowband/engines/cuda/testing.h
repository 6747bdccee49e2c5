// For this engine's tests: ranks as threads over the GPUs there are, exact calls on device memory.
//
// Ranks of one GPU must not wait for the device between their calls, so operands are allocated
// before the first call, filled and checked by kernels (test_kernels.h), and results are fetched
// when the stream has come there.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/cuda/engine.h"
#include "rowband/engines/cuda/test_kernels.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/op/gemm_all_reduce.h"
#include "rowband/testing/exact.h"

namespace rowband::cuda {

#define ROWBAND_NEEDS_GPUS(count)                                                           \
  if (device_count() < (count)) {                                                           \
    GTEST_SKIP() << "needs " << (count) << " GPU(s), this process sees " << device_count(); \
  }

// Ranks that share a device need queues of their own, or one's copy waits behind another's kernel.
// Read by CUDA at its first use.
inline const int kQueues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

inline int gpus() { return std::min(device_count(), 2); }  // that tests use

// The engine of `rank` of `world`, dealt over the first `devices` GPUs, with `groups` of such ranks
// there at once.
inline std::shared_ptr<Engine> engine_for(int rank, int world, int devices, int groups = 1) {
  EngineOptions options;
  options.device = rank % devices;
  options.device_ranks = (world * groups + devices - 1) / devices;
  return make_cuda_engine(options);
}

// A weight or activations of the tests, on the device.
template <typename Operand>
class OnDevice {
 public:
  OnDevice(Engine& engine, const Operand& operand)
      : view_(operand.view()),
        codes_(engine.upload(operand.codes.data(), operand.codes.size())),
        scales_(engine.upload(operand.scales.data(), operand.scales.size() * sizeof(float))) {
    view_.codes = static_cast<const E4m3*>(codes_.get());
    view_.scales = static_cast<const float*>(scales_.get());
  }
  auto view() const { return view_; }

 private:
  decltype(std::declval<Operand>().view()) view_;
  std::shared_ptr<const void> codes_, scales_;
};

inline std::int64_t free_bytes() {  // of the current device
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<std::int64_t>(free);
}

// Memory of a device that is taken while it lives, even if it is given back at once.
class MemoryWatch {
 public:
  explicit MemoryWatch(int device) : scope_(device), free_(free_bytes()) {
    check(cudaDeviceGetDefaultMemPool(&pool_, device), "the device's memory pool");
    std::uint64_t none = 0;
    check(cudaMemPoolSetAttribute(pool_, cudaMemPoolAttrUsedMemHigh, &none), "resetting its mark");
    used_ = of_pool(cudaMemPoolAttrUsedMemCurrent);
  }
  void expect_none_taken() const {
    EXPECT_EQ(free_bytes(), free_);
    EXPECT_LE(of_pool(cudaMemPoolAttrUsedMemHigh), used_);
  }

 private:
  std::uint64_t of_pool(cudaMemPoolAttr which) const {
    std::uint64_t bytes = 0;
    check(cudaMemPoolGetAttribute(pool_, which, &bytes), "asking the device's memory pool");
    return bytes;
  }

  const DeviceScope scope_;
  const std::int64_t free_;
  cudaMemPool_t pool_ = nullptr;
  std::uint64_t used_ = 0;
};

// The copy engine needs a GPU for each rank.
inline bool has_the_gpus(const GemmAllReduceOptions& options, int world, int devices) {
  return options.transport != Transport::kCopyEngine || world <= devices;
}

// The wires and transports that this engine serves in a world of `world`, as options; the copy
// engine only where each rank has a GPU of its own.
inline std::vector<GemmAllReduceOptions> served_variants(const GemmAllReduceOptions& base,
                                                         int world) {
  const auto engine = engine_for(0, 1, 1);
  std::vector<GemmAllReduceOptions> served;
  for (const auto& options : all_modes(base)) {
    if (!has_the_gpus(options, world, gpus())) continue;
    const PlanSpec spec = GemmAllReduce::plan_spec(*engine, options, world);
    if (engine->why_not_served(spec).empty()) served.push_back(options);
  }
  return served;
}

// Of the kernel's tiles: one, two or all three groups multiply.
inline constexpr std::int64_t kHeights[] = {64, 128, 192};

// With every call in tiles of `height` rows, which the plan would choose for some M only.
inline GemmAllReduceOptions in_tiles_of(std::int64_t height, GemmAllReduceOptions options) {
  auto hooks = options.faults ? std::make_shared<FaultHooks>(*options.faults)
                              : std::make_shared<FaultHooks>();
  hooks->tile_rows = height;
  options.faults = hooks;
  return options;
}

inline std::string variant_name(const GemmAllReduceOptions& options) {
  std::string name = std::string(transport_name(options.transport)) + ", wire " +
                     std::string(wire_name(options.wire)) + " by " +
                     std::string(gather_scale_name(options.gather_scale));
  if (options.faults && options.faults->tile_rows) {
    name += ", tiles of " + std::to_string(*options.faults->tile_rows);
  }
  return name;
}

// Of relative L2 against the float64 reference.
inline double error_limit(const GemmAllReduceOptions& options) {
  return options.wire == Wire::kFp8 ? 3e-2 : 3e-3;
}

// Runs body on `world` ranks over `devices` GPUs, each with an op of these options. Throws what any
// rank met, all together; nobody frees its op while a peer still runs.
inline void with_gpu_ops(int world, int devices, GemmAllReduceOptions options,
                         const std::function<void(Communicator&, Engine&, GemmAllReduce&)>& body,
                         std::chrono::seconds longest_wait = std::chrono::seconds(5)) {
  if (!has_the_gpus(options, world, devices)) return;
  options.deadline = std::min<std::chrono::nanoseconds>(options.deadline, longest_wait);
  std::vector<std::string> met(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    std::string& own = met[static_cast<std::size_t>(comm.rank())];
    std::shared_ptr<Engine> engine;
    std::unique_ptr<GemmAllReduce> op;
    try {
      check(cudaSetDevice(comm.rank() % devices), "choosing the rank's device");
      load_test_kernels();
      engine = engine_for(comm.rank(), world, devices);
      op = GemmAllReduce::create(comm, engine, options);
      body(comm, *engine, *op);
    } catch (const std::exception& error) {
      own = error.what();
    }
    comm.barrier(Deadline::after(std::chrono::seconds(60)));
  });
  std::string all;
  for (int rank = 0; rank < world; ++rank) {
    const std::string& one = met[static_cast<std::size_t>(rank)];
    if (!one.empty()) all += "\n  rank " + std::to_string(rank) + ": " + one;
  }
  if (all.empty()) return;
  throw std::runtime_error(
      "W=" + std::to_string(world) + " on " + std::to_string(devices) + " GPU(s), M up to " +
      std::to_string(options.max_rows) + ", N=" + std::to_string(options.cols) +
      ", K=" + std::to_string(options.depth) + ", " + variant_name(options) + ":" + all);
}

// The result of a call, on the host; throws what went wrong with it.
inline std::vector<Bf16> fetch(Engine& engine, const GemmAllReduce& op, const Output& y) {
  std::vector<Bf16> host(static_cast<std::size_t>(y.rows * y.cols));
  engine.download(host.data(), y.data, host.size() * sizeof(Bf16), nullptr);
  if (const std::string reason = op.poison(); !reason.empty()) throw std::runtime_error(reason);
  return host;
}

inline void run_exact_on_gpu(Communicator& comm, Engine& engine, GemmAllReduce& op,
                             const OnDevice<ExactWeight>& w, std::int64_t rows, std::int64_t call) {
  const std::int64_t depth = w.view().depth;
  const OnDevice<ExactActivations> x(engine, ExactActivations(rows, depth, comm.rank(), call));
  const Output y = op.run(x.view(), w.view());
  const auto host = fetch(engine, op, y);
  const auto difference =
      exact_difference({host.data(), y.rows, y.cols}, rows, depth, comm.size(), call);
  if (!difference.empty()) {
    throw std::runtime_error("rank " + std::to_string(comm.rank()) + ", M=" + std::to_string(rows) +
                             ", call " + std::to_string(call) + ": " + difference);
  }
}

}  // namespace rowband::cuda
