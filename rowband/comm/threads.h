// Ranks as threads of one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband {

// One communicator per rank of a group of `size` (1..64), to be handed to `size` threads. They
// share a state that lives until the last of them is destroyed; destroying one tells the others
// that this rank is gone, so that they fail instead of waiting.
std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size);

// Runs body(comm) on `size` threads, one rank each, and joins them all. If any threw, rethrows the
// error of the rank that failed first in time.
void run_ranks(int size, const std::function<void(Communicator&)>& body);

}  // namespace rowband
