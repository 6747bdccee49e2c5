// Ranks bootstrapped by the caller: an engine that already has a rendezvous of its own (a TCP
// store, torch.distributed) passes it as functions.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "rowband/comm/communicator.h"

namespace rowband {

struct CommunicatorCallbacks {
  int rank = 0;
  int size = 1;
  // Collective; fills recv (size * bytes) from every rank's send (bytes). Required. May throw;
  // should give up by `deadline`.
  std::function<void(const void* send, void* recv, std::size_t bytes, Deadline deadline)>
      all_gather;
  // Collective in-place bf16 sum for the base path. Optional: without it, an all-reduce over shared
  // memory of this library is used.
  std::function<void(Bf16* data, std::int64_t count, Deadline deadline)> all_reduce;
  // What the communicator says it is; must outlive it.
  std::string_view kind = "callbacks";
};

// The ranks may be threads of one process or processes of one machine; both are found out. Between
// processes the window is an anonymous memory file (memfd) that peers open through pidfd_getfd or,
// where that is forbidden, /proc/PID/fd; nothing is ever named in /dev/shm.
std::unique_ptr<Communicator> make_callback_communicator(CommunicatorCallbacks callbacks);

}  // namespace rowband
