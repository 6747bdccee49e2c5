// Who started this process, and as which rank: mpirun, torchrun, or this program itself
// (rank_processes.h), which speaks as torchrun does.
#pragma once

#include <optional>

#include "rowband/comm/tcp.h"

namespace rowband::cli {

enum class Launcher { kNone, kMpi, kTorchrun };

// mpirun where it left its variables, else torchrun where RANK and WORLD_SIZE are set.
Launcher launcher();

// Of this process; 0 without a launcher.
int launched_rank();
// Among the ranks of this machine, which may use one GPU each; `rank` where no launcher says.
int launched_local_rank(int rank);
// How many processes the launcher started. Initialises MPI where mpirun's variables do not tell.
int launched_processes();

// Where torchrun's ranks meet. Throws Error(kInvalidArgument) naming the variable that is missing
// or wrong.
TcpRendezvous launched_rendezvous();

}  // namespace rowband::cli
