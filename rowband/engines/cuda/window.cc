#include "rowband/engines/cuda/window.h"

#include "rowband/base/fail.h"
#include "rowband/comm/gpu_identity.h"
#include "rowband/comm/nccl_comm.h"
#include "rowband/engines/cuda/nccl_window.h"
#include "rowband/engines/cuda/process_window.h"

namespace rowband::cuda {
namespace {

using comm::GpuIdentity;

std::vector<GpuIdentity> identities(Communicator& comm, int device, Deadline deadline) {
  GpuIdentity own;
  std::string failure;
  try {
    own = comm::gpu_identity(device);
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_success(comm, "the GPU window", failure, ErrorCode::kUnavailable, deadline);
  std::vector<GpuIdentity> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&own, all.data(), sizeof own, deadline);
  return all;
}

bool one_process(const std::vector<GpuIdentity>& ranks) {
  for (const GpuIdentity& rank : ranks) {
    if (!(rank.process == ranks[0].process)) return false;
  }
  return true;
}

// Throws alike on every rank.
void require_processes_with_gpus(const std::vector<GpuIdentity>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (ranks[rank].process == ranks[other].process) {
        fail(ErrorCode::kUnavailable,
             "ranks {} and {} are threads of one process and others are not: the GPU window joins "
             "ranks that are all threads of one process, or each a process of its own",
             other, rank);
      }
      if (ranks[rank].same_gpu(ranks[other])) {
        fail(ErrorCode::kUnavailable,
             "ranks {} and {} are different processes on one GPU: start no more processes than "
             "there are GPUs, each with a GPU of its own, or let the ranks that share a GPU be "
             "threads of one process",
             other, rank);
      }
    }
  }
}

}  // namespace

std::unique_ptr<Window> make_window(Communicator& comm, std::size_t bytes, int device,
                                    const FaultHooks* faults, Deadline deadline) {
  const std::vector<GpuIdentity> ranks = identities(comm, device, deadline);
  if (one_process(ranks)) return make_process_window(comm, bytes, device, faults, deadline);
  require_processes_with_gpus(ranks);
  return make_nccl_window(comm, bytes, device, faults, deadline);
}

}  // namespace rowband::cuda
