// The host engine: CPU ranks of one machine.
#pragma once

#include <memory>

#include "rowband/engines/engine.h"

namespace rowband::host {

// `rank` names the timeline's lanes. Throws Error(kInvalidArgument) for an unknown kernel.
std::unique_ptr<Engine> make_host_engine(int rank, const EngineOptions& options);
std::unique_ptr<EnginePlanner> make_host_planner();

}  // namespace rowband::host
