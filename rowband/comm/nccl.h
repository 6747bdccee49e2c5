// Ranks that find each other by NCCL, one per GPU: processes, or threads of one process.
#pragma once

#include <memory>

#include "rowband/comm/communicator.h"
#include "rowband/comm/nccl_comm.h"
#include "rowband/comm/tcp.h"

namespace rowband {

// Collective. all_gather and all_reduce take host memory, as every communicator's, and move it
// through the GPUs by NCCL (the base path on GPUs sums device memory: comm/nccl_comm.h). The sum of
// more than two ranks is rounded to bf16 at each of NCCL's steps. allocate_symmetric is host memory
// of one machine. After a passed deadline or a lost peer the communicator must not be used again,
// and GPU kernels of NCCL that still waited have been ended.
//
// Throws Error(kUnavailable) where there is no NCCL (comm::why_no_nccl), and what
// comm::make_nccl_comm throws.

// From an ncclUniqueId that the caller's own rendezvous told to every rank.
std::unique_ptr<Communicator> make_nccl_communicator(
    const comm::NcclId& id, int rank, int size, int device,
    Deadline deadline = Deadline::after(kDefaultDeadline));

// From any other communicator, MPI's for example, which is not needed afterwards.
std::unique_ptr<Communicator> make_nccl_communicator(
    Communicator& bootstrap, int device, Deadline deadline = Deadline::after(kDefaultDeadline));

// From a host and a port, as torchrun tells its processes (torchrun_rendezvous; `device` is
// LOCAL_RANK): rank 0's id goes round by TCP. Throws also what make_tcp_communicator throws.
std::unique_ptr<Communicator> make_nccl_communicator(
    const TcpRendezvous& rendezvous, int device,
    Deadline deadline = Deadline::after(kDefaultDeadline));

}  // namespace rowband
