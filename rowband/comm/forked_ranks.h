// Test code: ranks as processes made by fork(), whose all_gather travels over socket pairs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "rowband/comm/callbacks.h"

namespace rowband::comm {

// How a rank's process ended: "" when it did what it should, else its error or signal in words.
using RankOutcomes = std::vector<std::string>;

// Runs body(callbacks) in processes of `ranks_per_process` ranks each, one thread per rank, and
// waits for all of them. The callbacks gather through rank 0; a closed socket is Error(kPeerLost).
RankOutcomes run_forked(int size, int ranks_per_process,
                        const std::function<void(const CommunicatorCallbacks&)>& body);

// Makes pidfd_getfd, and with `also_open` every openat for writing, fail with EPERM from here on,
// as a container's rules may. Throws Error(kUnavailable) where that cannot be had.
void forbid_pidfd_getfd(bool also_open);

}  // namespace rowband::comm
