// Symmetric memory for ranks in any mix of processes and threads of one machine. Between processes
// it is an anonymous memory file (memfd) that the peers open by descriptor: nothing has a name, so
// nothing can be stale, collide with another job, or stay behind when every rank is killed.
#pragma once

#include <memory>
#include <vector>

#include "rowband/comm/communicator.h"
#include "rowband/comm/process.h"

namespace rowband::comm {

// A rank as the others know it.
struct Neighbour {
  ProcessIdentity identity;
  PeerProcess process;
};

// Collective over `comm`, whose ranks are `neighbours`.
std::unique_ptr<SymmetricMemory> allocate_memfd_window(Communicator& comm,
                                                       const std::vector<Neighbour>& neighbours,
                                                       std::size_t bytes, Deadline deadline);

}  // namespace rowband::comm
