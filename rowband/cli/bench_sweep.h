// `rowband bench`: the base path against the fused arms over a sweep of shapes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rowband/cli/compare.h"
#include "rowband/cli/options.h"

namespace rowband::cli {

struct SweepFlags {
  std::vector<std::int64_t> rows = {64, 256, 1024};
  std::vector<std::int64_t> cols = {7168};
  std::vector<std::int64_t> depths = {2048};
  std::vector<int> worlds;    // empty: 2, or mpirun's processes
  std::vector<ArmSpec> arms;  // base first
  int repeats = 0;
  int sets = 3;
  std::uint64_t seed = 0;
  LayerFlags layer;
  EngineFlags engine;
};

struct ShapeResult {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;
  int world = 1;
  double quantize_ms = 0;  // of the activations, which no arm's time includes
  std::vector<ArmResult> arms;
};

// Runs the sweep; the results are complete in the first process only.
// The Ws of the sweep. Throws Error(kInvalidArgument) as world_size does, and for several of ranks
// that are to be processes.
std::vector<int> worlds_of(const SweepFlags& flags);

std::vector<ShapeResult> run_sweep(const SweepFlags& flags);

}  // namespace rowband::cli
