// The window of ranks that are threads of one process: plain device memory that the peers' GPUs
// reach by peer access.
#pragma once

#include "rowband/engines/cuda/window.h"

namespace rowband::cuda {

// Collective, as make_window.
std::unique_ptr<Window> make_process_window(Communicator& comm, std::size_t bytes, int device,
                                            const FaultHooks* faults, Deadline deadline);

}  // namespace rowband::cuda
