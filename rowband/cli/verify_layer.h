// `rowband run --verify`: what has to hold of a layer's results, whatever they are used for.
#pragma once

#include <string>
#include <vector>

#include "rowband/cli/engine_memory.h"
#include "rowband/cli/layer_input.h"
#include "rowband/cli/verify.h"
#include "rowband/layer/row_parallel_linear.h"

namespace rowband::cli {

struct Check {
  bool ok = false;
  std::string text;
};

// One layer's calls with one input, and what they gave on this rank.
struct LayerRun {
  Communicator& comm;
  std::shared_ptr<Engine> engine;
  const LayerInput& input;
  const LayerOptions& options;
  RowParallelLinear& layer;
  const ActivationSlice& x;
  const EngineActivations& engine_x;  // the same
  const std::vector<Bf16>& bias;
  int threads = 1;                                    // for the reference
  std::vector<std::vector<std::uint64_t>> call_rows;  // row digests of each call
};

// `result` is the last call's, on the host. Runs further calls of the layer, and one of a second
// layer. The checks are the same on every rank. Collective.
std::vector<Check> verify_layer(LayerRun& run, const Output& result);

}  // namespace rowband::cli
