// Which GPU a rank uses, where the engine is cuda.
#pragma once

#include "rowband/cli/options.h"
#include "rowband/comm/communicator.h"
#include "rowband/engines/engine.h"

namespace rowband::cli {

// Ranks that share a GPU need hardware queues of their own, or one's copy waits behind another's
// kernel that waits for it. To be called before anything asks for GPUs; a
// CUDA_DEVICE_MAX_CONNECTIONS that is set stays.
void ask_for_gpu_queues();

// A rank's GPU, of those that this process sees: device and device_ranks. Ranks that are threads
// are dealt over them; a process takes one by its rank on this machine. Throws Error(kUnavailable)
// when CUDA_DEVICE_MAX_CONNECTIONS leaves ranks that share a GPU too few queues. Changes nothing
// where there are no GPUs.
void deal_gpus(const Communicator& comm, EngineOptions& options);

// Processes on the engine cuda where each rank gets a GPU of its own and there is NCCL to join
// them; else threads.
RanksAs ranks_by_default(int world, EngineKind kind);

}  // namespace rowband::cli
