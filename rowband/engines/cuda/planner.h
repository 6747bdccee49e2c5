// What the cuda engine serves and with which tiles: arithmetic that needs neither GPU nor driver.
#pragma once

#include <memory>

#include "rowband/engines/engine.h"

namespace rowband::cuda {

// Its tiles_at_once() are this rank's share of the device in clusters of two SMs, each of which
// works on a tile. Throws Error(kInvalidArgument) when a rank would get none.
std::unique_ptr<EnginePlanner> make_cuda_planner(const PlannerOptions& options);

// How many copies of pieces may be on their way to the peers at one time in a call of a spec with
// this engine's tiles; 0: no limit.
int pieces_on_link(const PlanSpec& spec, const CallPlan& plan);

}  // namespace rowband::cuda
