#include "rowband/comm/nccl_control.h"

#include <cuda_runtime.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/fail.h"
#include "rowband/comm/communicator.h"
#include "rowband/comm/gpu_identity.h"
#include "rowband/comm/nccl_library.h"

namespace rowband::comm {

int first_lost(const NcclRank& own) {
  if (!own.peer_alive) return -1;
  for (int peer = 0; peer < own.size; ++peer) {
    if (peer != own.rank && !own.peer_alive(peer)) return peer;
  }
  return -1;
}

namespace {

constexpr std::chrono::microseconds kBetweenLooks{100};
// How often the peers' lives are looked at: each look is a system call per peer.
constexpr std::chrono::milliseconds kBetweenRounds{20};

void require_gpu_each(Communicator& comm, const GpuIdentity& own, Deadline deadline) {
  std::vector<GpuIdentity> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&own, all.data(), sizeof own, deadline);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t other = 0; other < rank; ++other) {
      if (!all[rank].same_gpu(all[other])) continue;
      fail(
          ErrorCode::kUnavailable,
          "ranks {} and {} are on one GPU, and NCCL joins one rank per GPU; ranks that share a GPU "
          "must be threads of one process",
          other, rank);
    }
  }
}

}  // namespace

std::string why_no_nccl() {
  try {
    nccl();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string nccl_version() {
  return why_no_nccl().empty() ? nccl_version_text(nccl().version) : "";
}

NcclId make_nccl_id() {
  ncclUniqueId made;
  nccl_check(nccl().ncclGetUniqueId(&made), "making the ranks' id");
  NcclId id;
  static_assert(sizeof id.bytes == sizeof made.internal);
  std::memcpy(id.bytes.data(), made.internal, sizeof made.internal);
  return id;
}

NcclControl::NcclControl(const NcclId& id, NcclRank rank, Deadline deadline)
    : rank_(std::move(rank)) {
  if (rank_.size < 1 || rank_.rank < 0 || rank_.rank >= rank_.size) {
    fail(ErrorCode::kInvalidArgument, "rank {} of {} ranks; the rank must be in [0, size)",
         rank_.rank, rank_.size);
  }
  const cuda::DeviceScope scope(rank_.device);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclUniqueId unique;
  std::memcpy(unique.internal, id.bytes.data(), sizeof unique.internal);
  const ncclResult_t result =
      nccl().ncclCommInitRankConfig(&comm_, rank_.size, unique, rank_.rank, &config);
  settle(result, fmt::format("joining {} ranks as rank {}", rank_.size, rank_.rank), deadline);
}

NcclControl::~NcclControl() { abort(); }

void NcclControl::abort() {
  if (comm_ != nullptr) nccl().ncclCommAbort(std::exchange(comm_, nullptr));
}

// Some calls return success while they are in progress; only the communicator's state tells.
void NcclControl::settle(int result, const std::string& what, Deadline deadline) {
  auto state = static_cast<ncclResult_t>(result);
  auto next_round = Deadline::Clock::now() + kBetweenRounds;
  try {
    if (state != ncclInProgress) nccl_check(state, what);
    for (;;) {
      nccl_check(nccl().ncclCommGetAsyncError(comm_, &state), what);
      if (state != ncclInProgress) break;
      if (deadline.passed()) {
        fail(ErrorCode::kDeadline, "{}: {:.3g} s passed in NCCL", what, deadline.budget_seconds());
      }
      std::this_thread::sleep_for(kBetweenLooks);
      if (Deadline::Clock::now() < next_round) continue;
      next_round += kBetweenRounds;
      if (const int lost = first_lost(rank_); lost >= 0) {
        fail(ErrorCode::kPeerLost, "{}: rank {} is gone", what, lost);
      }
    }
    nccl_check(state, what);
  } catch (const Error&) {
    abort();
    throw;
  }
}

NcclId agree_on_nccl_id(Communicator& comm, int device, Deadline deadline) {
  std::string failure;
  GpuIdentity own;
  NcclId id;
  try {
    own = gpu_identity(device);
    if (const std::string why = why_no_nccl(); !why.empty()) {
      fail(ErrorCode::kUnavailable, "{}", why);
    }
    if (comm.rank() == 0) id = make_nccl_id();
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_success(comm, "NCCL", failure, ErrorCode::kUnavailable, deadline);
  require_gpu_each(comm, own, deadline);
  std::vector<NcclId> ids(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&id, ids.data(), sizeof id, deadline);
  return ids[0];
}

std::unique_ptr<NcclControl> NcclControl::over(Communicator& comm, int device, Deadline deadline) {
  const NcclId id = agree_on_nccl_id(comm, device, deadline);
  std::unique_ptr<NcclControl> control;
  std::string failure;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    const NcclRank rank{comm.rank(), comm.size(), device,
                        [&comm](int peer) { return comm.peer_alive(peer); }};
    control = std::make_unique<NcclControl>(id, rank, deadline);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "NCCL", failure, code, deadline);
  return control;
}

}  // namespace rowband::comm
