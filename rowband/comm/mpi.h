// Ranks as the processes of an MPI communicator, all on one machine. Only in builds with MPI
// (ROWBAND_HAVE_MPI).
#pragma once

#include <memory>

#include "rowband/comm/communicator.h"

namespace rowband {

// True when this process was started by mpirun or another PMI launcher. Does not initialise MPI: it
// looks at the launchers' environment variables, the one look at the environment below the layer.
bool started_by_mpi();

// Initialises MPI if nobody has (MPI_THREAD_MULTIPLE asked for, MPI_THREAD_SERIALIZED required) and
// finalises it at exit in that case. Duplicates MPI_COMM_WORLD. Throws Error(kUnavailable) when the
// ranks do not share one machine's memory (MPI_COMM_TYPE_SHARED smaller than the world) or the
// build has no MPI. Several communicators may be used from several threads only if MPI provides
// MPI_THREAD_MULTIPLE.
//
// Memory of allocate_symmetric: letting go of it is not collective but freeing an MPI window is, so
// the window is freed by the next allocate_symmetric after all ranks let go, or when MPI ends.
//
// After a passed deadline or a lost peer, no communicator of this process calls MPI again, and the
// process ends without MPI_Finalize, so that the launcher ends the job. Until then MPI may still
// write to the buffers of the abandoned call whenever the program calls MPI itself.
std::unique_ptr<Communicator> make_mpi_world_communicator();

}  // namespace rowband
