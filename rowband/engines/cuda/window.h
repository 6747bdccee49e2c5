// The symmetric window of GPU ranks: device memory of the same size on every rank, zero-filled,
// that every rank's GPU can write.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband {
struct FaultHooks;
}

namespace rowband::cuda {

// One rank's view of a window. It ends with this object, which is not collective: the rank must
// have synchronised its device, and its last call must have ended, before it lets go.
class Window {
 public:
  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Address, for this rank's GPU, of `rank`'s part.
  std::byte* part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }

 protected:
  Window() = default;
  std::vector<std::byte*> parts_;  // by rank
};

// Collective; all ranks get a window, or all the same error with each failing rank's reason:
// Error(kOutOfMemory) where the memory is not there, Error(kUnavailable) where a rank cannot reach
// a peer's. `bytes` is the same on all ranks; `device` is this rank's and the current one. When it
// returns, this rank's part is zero and the peers may write it. `comm` must outlive the window.
//
// Ranks that are threads of one process, on one GPU or several, reach each other's memory by peer
// access; ranks that are each a process of its own, one per GPU, by NCCL (nccl_window.h). A
// mixture, and processes that share a GPU, are Error(kUnavailable).
std::unique_ptr<Window> make_window(Communicator& comm, std::size_t bytes, int device,
                                    const FaultHooks* faults, Deadline deadline);

}  // namespace rowband::cuda
