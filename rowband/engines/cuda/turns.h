// Ranks that share a GPU in one process, one after the other.
#pragma once

#include <functional>

#include "rowband/comm/communicator.h"

namespace rowband::cuda {

// Collective. Runs `step` on every rank; of the ranks of one process and device only one at a time,
// in the order of their ranks. `step` does not throw.
void take_turns(Communicator& comm, int device, Deadline deadline,
                const std::function<void()>& step);

}  // namespace rowband::cuda
