// `rowband bench --engine cuda`: what of the command line it takes, and where its reports go.
#pragma once

#include <string>

#include "rowband/cli/bench_sweep.h"

namespace rowband::cli {

struct GpuBenchRequest {
  SweepFlags flags;           // shapes, ranks, repeats, seed, layer and engine
  bool shapes_given = false;  // else the shapes that have targets
  bool sweep = false;         // M from 1 to 32768
  std::string json, markdown;
};

// Prints the table and the targets; returns the exit status.
int bench_on_gpus(const GpuBenchRequest& request);

}  // namespace rowband::cli
