#include "rowband/cli/devices.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include <spdlog/spdlog.h>

#include "rowband/base/fail.h"
#include "rowband/cli/launcher.h"
#include "rowband/comm/nccl_comm.h"
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

int gpu_queues() {
  const char* const text = std::getenv(kQueues);
  if (text == nullptr) return 8;  // CUDA's own default
  const char* const end = text + std::strlen(text);
  int queues = 0;
  if (const auto [last, error] = std::from_chars(text, end, queues);
      error != std::errc() || last != end) {
    fail(ErrorCode::kInvalidArgument, "{}='{}': must be a number, or left unset", kQueues, text);
  }
  return queues;
}

}  // namespace

void ask_for_gpu_queues() { setenv(kQueues, "32", /*overwrite=*/0); }

RanksAs ranks_by_default(int world, EngineKind kind) {
  if (kind != EngineKind::kCuda || world > gpu_count()) return RanksAs::kThreads;
  const std::string why = comm::why_no_nccl();
  if (why.empty()) return RanksAs::kProcesses;
  spdlog::info("rowband: the ranks are threads of one process: {}", why);
  return RanksAs::kThreads;
}

void deal_gpus(const Communicator& comm, EngineOptions& options) {
  const int gpus = gpu_count();
  if (gpus == 0) return;
  if (comm.kind() != "threads") {
    options.device = launched_local_rank(comm.rank()) % gpus;
    return;
  }
  options.device = comm.rank() % gpus;
  options.device_ranks = (comm.size() + gpus - 1) / gpus;
  if (options.device_ranks == 1) return;
  const int queues = gpu_queues();
  const int needed = kQueuesPerRank * options.device_ranks;
  if (queues < needed) {
    fail(ErrorCode::kUnavailable,
         "{}={}: {} ranks share GPU {} and need {} queues, or one's copy waits behind another's "
         "kernel; leave it unset, or start fewer ranks",
         kQueues, queues, options.device_ranks, options.device, needed);
  }
}

}  // namespace rowband::cli
