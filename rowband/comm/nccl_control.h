// An NCCL communicator of one rank on one GPU whose calls return at once and are waited for with a
// deadline: how NCCL's ranks find each other, and what windows are registered with. Only in builds
// with NCCL's headers (ROWBAND_HAVE_NCCL).
#pragma once

#include <memory>
#include <string>

#include "rowband/comm/nccl_comm.h"

struct ncclComm;

namespace rowband::comm {

class NcclControl {
 public:
  // Collective over the ranks that hold `id`. Throws Error(kUnavailable) with NCCL's words,
  // Error(kPeerLost) or Error(kDeadline); the peers of a rank that threw fail too, at the latest at
  // their deadline.
  NcclControl(const NcclId& id, NcclRank rank, Deadline deadline);
  // Local. Frees what NCCL maps of the peers' windows.
  ~NcclControl();
  NcclControl(const NcclControl&) = delete;
  NcclControl& operator=(const NcclControl&) = delete;

  // Collective over `comm`, which must outlive it: all ranks get one, or all the same error with
  // each failing rank's reason, as agree_on_nccl_id.
  static std::unique_ptr<NcclControl> over(Communicator& comm, int device, Deadline deadline);

  const NcclRank& rank() const { return rank_; }
  ncclComm* get() const { return comm_; }

  // Waits until a call that returned `result` (an ncclResult_t) has ended; throws as the
  // constructor does, and the communicator is gone then.
  void settle(int result, const std::string& what, Deadline deadline);
  bool usable() const { return comm_ != nullptr; }

 private:
  void abort();

  const NcclRank rank_;
  ncclComm* comm_ = nullptr;
};

// The first rank other than `own` that is gone, or -1.
int first_lost(const NcclRank& own);

}  // namespace rowband::comm
