// MPI in this process: its start, its end, and whether it may still be called.
//
// After a failure nothing of this room calls MPI again in this process, not even MPI_Finalize: an
// abandoned collective still holds the caller's buffers, and MPI writes to them whenever it makes
// progress. The launcher sees a process end without MPI_Finalize and ends the job.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/comm/mpi_group.h"

namespace rowband::comm {

class MpiRuntime {
 public:
  // Starts MPI on the first call, unless the program has. Never destroyed.
  static MpiRuntime& instance();

  // Collective over MPI_COMM_WORLD. Also frees groups that all ranks have let go of since.
  std::shared_ptr<MpiGroup> make_group(Deadline deadline);

  // Throws the failure, if there was one, and Error(kUnavailable) after the end of MPI.
  void require_usable();
  // The first one stays. Tells the peers, in every group.
  void record_failure(const Error& error);

 private:
  MpiRuntime();

  void free_released_groups(Deadline deadline);
  bool finalise();
  bool free_all();
  bool all_ranks_finalise();

  static int on_mpi_finalise(MPI_Comm, int, void*, void*);
  static void at_exit();

  std::mutex mutex_;  // of the two below
  std::optional<Error> failure_;
  std::vector<std::shared_ptr<MpiGroup>> groups_;  // in the order of their making, as on all ranks
  std::shared_ptr<MpiGroup> world_;                // for the runtime itself
  std::optional<bool> finalised_;
};

}  // namespace rowband::comm
