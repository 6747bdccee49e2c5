// Ranks that share a GPU in one process, one after the other.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "rowband/comm/communicator.h"

namespace rowband::cuda {

// Collective. Runs `step` on every rank; of the ranks of one process and device only one at a time,
// in the order of their ranks. `step` does not throw.
void take_turns(Communicator& comm, int device, Deadline deadline,
                const std::function<void()>& step);

// Collective. Makes the first launch on `stream`, which is this rank's, by turns, and waits for it:
// a stream's hardware queue is chosen then, and of two chosen at once both may be the same, in
// which one rank's calls wait behind another's. Throws on every rank alike.
void choose_queue(Communicator& comm, int device, cudaStream_t stream, Deadline deadline);

}  // namespace rowband::cuda
