// Which GPU a rank uses, where the engine is cuda.
#pragma once

#include "rowband/engines/engine.h"

namespace rowband::cli {

// Ranks that share a GPU need hardware queues of their own, or one's copy waits behind another's
// kernel that waits for it. To be called before anything asks for GPUs; a
// CUDA_DEVICE_MAX_CONNECTIONS that is set stays.
void ask_for_gpu_queues();

// Deals `world` ranks of this process over the GPUs that it sees: device and device_ranks. Throws
// Error(kUnavailable) when CUDA_DEVICE_MAX_CONNECTIONS leaves ranks that share a GPU too few
// queues. Changes nothing where there are no GPUs.
void deal_gpus(int rank, int world, EngineOptions& options);

}  // namespace rowband::cli
