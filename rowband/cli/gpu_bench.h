// `rowband bench --engine cuda`: the fused calls against what engines run today, on the GPUs of
// this machine. Every arm is checked before any time is told.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rowband/cli/arms.h"
#include "rowband/cli/options.h"

namespace rowband::cli {

struct GpuShape {
  std::int64_t rows, cols, depth;
  bool operator==(const GpuShape&) const = default;
};

struct GpuBenchFlags {
  std::vector<GpuShape> shapes;
  std::vector<ArmSpec> fused;
  std::optional<int> ranks;
  int repeats = 0;  // 0: 20
  std::uint64_t seed = 0;
  LayerFlags layer;
  EngineFlags engine;
};

// Microseconds of one repetition each, the maximum over ranks.
struct GpuTimes {
  std::vector<double> queued;  // per call, several queued behind another: the GPUs' time
  std::vector<double>
      single;  // one call on idle GPUs, from its launch to the host's knowing it done
};

struct GpuArmResult {
  std::string name;
  std::optional<ArmSpec> fused;
  std::string like;       // the arm whose result this one's was compared with
  double difference = 0;  // relative L2
  std::string wrong;      // why there are no times, or
  std::string absent;     // why this arm does not serve the shape
  GpuTimes us;

  bool timed() const { return wrong.empty() && absent.empty(); }
};

struct GpuShapeResult {
  GpuShape shape;
  std::vector<GpuArmResult> arms;  // base first
  std::int64_t bytes_bf16 = 0;     // that the busiest rank sends, by the wire; packed, at least
  std::int64_t bytes_fp8 = 0;
  Verdict verdict;  // of the policy when it is on

  const GpuArmResult* find(std::string_view name) const;  // null when it has no times
};

struct GpuBenchResult {
  int world = 0;
  std::string engine, all_reduce, libraries, kernels;
  // GB/s each way, the best in this run, of the copy engine and of stores; 0 without two GPUs.
  double copy_rate = 0, store_rate = 0;
  std::vector<std::string> not_served;
  std::vector<GpuShapeResult> shapes;
};

int gpu_bench_world(const GpuBenchFlags& flags);

// Complete in the first process only. Throws Error(kUnavailable) without GPUs, and what the calls
// throw.
GpuBenchResult run_gpu_bench(const GpuBenchFlags& flags);

}  // namespace rowband::cli
