// The base path's all-reduce of bf16 device memory.
#pragma once

#include <cuda_runtime.h>

#include <memory>

#include "rowband/engines/engine.h"

namespace rowband::comm {
class NcclComm;
}

namespace rowband::cuda {

// The NCCL communicator that an engine's all-reduces of one group share: making one takes a second,
// and memory of the GPU. It lives as long as the last of them.
struct SharedNccl {
  const Communicator* group = nullptr;
  std::weak_ptr<comm::NcclComm> nccl;
};

// Collective. ncclAllReduce on the call's stream, which returns at once and may be captured into a
// graph, where every rank has NCCL and a GPU of its own. Else through the host, and description()
// says why: copied there, summed by the communicator, copied back; right for every group, and slow,
// and a call waits for its stream. `device` is this rank's GPU, `own_stream` takes the calls that
// name none. Neither the engine nor the communicator may end before it. Throws alike on every rank
// what comm::make_nccl_comm throws.
std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Engine& engine, int device,
                                           cudaStream_t own_stream, SharedNccl& shared,
                                           Deadline deadline);

}  // namespace rowband::cuda
