// Ranks as the processes of an MPI communicator, all on one machine. Only in builds with MPI
// (ROWBAND_HAVE_MPI).
#pragma once

#include <memory>

#include "rowband/comm/communicator.h"

namespace rowband {

// True when this process was started by mpirun or another PMI launcher (from its environment; does
// not initialise MPI).
bool started_by_mpi();

// Initialises MPI if nobody has (MPI_THREAD_MULTIPLE asked for, MPI_THREAD_SERIALIZED required) and
// finalises it at exit in that case. Duplicates MPI_COMM_WORLD. Throws Error(kUnavailable) when the
// ranks do not share one machine's memory (MPI_COMM_TYPE_SHARED smaller than the world) or the
// build has no MPI.
std::unique_ptr<Communicator> make_mpi_world_communicator();

}  // namespace rowband
