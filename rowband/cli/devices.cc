#include "rowband/cli/devices.h"

#include <cstdlib>

#include "rowband/base/fail.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/engines/cuda/engine.h"
#endif

namespace rowband::cli {
namespace {

constexpr const char* kQueues = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr int kQueuesPerRank = 2;  // its calls, and its engine's own stream

int gpu_count() {
#ifdef ROWBAND_HAVE_CUDA
  return cuda::device_count();
#else
  return 0;
#endif
}

}  // namespace

void ask_for_gpu_queues() { setenv(kQueues, "32", /*overwrite=*/0); }

void deal_gpus(int rank, int world, EngineOptions& options) {
  const int gpus = gpu_count();
  if (gpus == 0) return;
  options.device = rank % gpus;
  options.device_ranks = (world + gpus - 1) / gpus;
  const char* text = std::getenv(kQueues);
  const int queues = text == nullptr ? 8 : std::atoi(text);  // CUDA's own default is 8
  const int needed = kQueuesPerRank * options.device_ranks;
  if (options.device_ranks > 1 && queues < needed) {
    fail(ErrorCode::kUnavailable,
         "{}={}: {} ranks share GPU {} and need {} queues, or one's copy waits behind another's "
         "kernel; leave it unset, or start fewer ranks",
         kQueues, queues, options.device_ranks, options.device, needed);
  }
}

}  // namespace rowband::cli
