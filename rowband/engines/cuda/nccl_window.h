// The window of ranks that are processes, one per GPU: memory of NCCL, registered with it as a
// symmetric window, which every rank's GPU can address.
#pragma once

#include "rowband/engines/cuda/window.h"

namespace rowband::cuda {

// Collective, as make_window. Error(kUnavailable) without NCCL, with one whose windows are laid out
// otherwise than this build's headers say, and where NCCL registers nothing or does not reach all
// ranks by load and store (no NVLink or PCIe peer access between them).
std::unique_ptr<Window> make_nccl_window(Communicator& comm, std::size_t bytes, int device,
                                         const FaultHooks* faults, Deadline deadline);

}  // namespace rowband::cuda
