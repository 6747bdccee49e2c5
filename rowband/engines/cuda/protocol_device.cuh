// The protocol's words on the device: epochs, flags, failure, and waits with a deadline.
#pragma once

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

// Folded into a flag's 32 bits without 0, which fresh flags hold.
__device__ std::uint32_t epoch_of(std::uint64_t call) {
  return static_cast<std::uint32_t>((call - 1) % 0xFFFFFFFFu + 1);
}

// The one that this block works on.
__device__ std::uint64_t this_call(const FusedArguments& a) { return a.calls[blockIdx.x] + 1; }
__device__ const Tally& tally(const FusedArguments& a, std::uint64_t call) {
  return a.tally[call % 2];
}

// By threads of which this is one of `threads`.
__device__ void clear(const FusedArguments& a, const Tally& counts, int thread, int threads) {
  for (int i = thread; i < a.world * a.order.chunks; i += threads) {
    counts.chunk_done[i] = 0;
    counts.chunk_begin[i] = 0;
  }
  if (thread != 0) return;
  if (counts.tiles_taken != nullptr) *counts.tiles_taken = 0;
  *counts.widened = 0;
}

__device__ void publish(Status* to, const Status& reason) {
  to->rank = reason.rank;
  to->leg = reason.leg;
  to->peer = reason.peer;
  to->chunk = reason.chunk;
  to->own = reason.own;
  to->theirs = reason.theirs;
  ptx::store_release_system(&to->code, reason.code);
}

// The peers are told, so that they need not wait for their own deadlines.
__device__ void fail_call(const FusedArguments& a, const Status& reason) {
  if (atomicCAS(&a.status->code, Status::kFine, reason.code) != Status::kFine) return;
  publish(a.host_status, reason);
  for (int peer = 0; peer < a.world; ++peer) {
    if (peer != a.rank) publish(a.failure_at[peer], reason);
  }
}

__device__ bool failed(const FusedArguments& a) {
  return *reinterpret_cast<volatile std::uint32_t*>(&a.status->code) != Status::kFine;
}

// Whether that peer has failed, and so this call.
__device__ bool failed_by(const FusedArguments& a, int peer) {
  if (ptx::load_acquire_system(&a.failure[peer]->code) == Status::kFine) return false;
  fail_call(a, *a.failure[peer]);
  return true;
}

// copy_engine, by a block that has used all it waited for: a rank's later copies may have come on
// top of it, but only once that rank had failed and told so.
__device__ void look_for_failures(const FusedArguments& a) {
  for (int peer = 0; peer < a.world; ++peer) {
    if (peer != a.rank && failed_by(a, peer)) return;
  }
}

// At a flag, for each look at what else may end a wait: each takes as long.
constexpr std::uint32_t kLooks = 16;

// One thread waits for `peer`; false once the call has failed.
__device__ bool await(const FusedArguments& a, const std::uint32_t* flag, std::uint32_t epoch,
                      std::uint32_t leg, std::uint32_t peer, std::uint32_t chunk) {
  if (ptx::load_acquire_system(flag) == epoch) return true;
  // A peer whose results do not come is mostly waiting for a partial itself, and one that does not
  // begin for its last call's results: whoever waits for the first of these should speak first and
  // name the rank at fault. So the waits of the later legs, whose numbers are higher, last longer,
  // and those of later chunks, whose partials may stand behind a wait for an earlier one.
  const std::uint64_t last =
      a.deadline_ns + std::uint64_t{a.leg_grace_ns} * leg + std::uint64_t{a.chunk_grace_ns} * chunk;
  const std::uint64_t begin = ptx::clock_ns();
  for (std::uint32_t looks = 1; ptx::load_acquire_system(flag) != epoch; ++looks) {
    __nanosleep(100);
    if (looks % kLooks != 0) continue;
    if (failed(a) || failed_by(a, peer)) return false;
    if (ptx::clock_ns() - begin > last) {
      fail_call(a, {Status::kDeadline, static_cast<std::uint32_t>(a.rank), leg, peer, chunk});
      return false;
    }
  }
  return true;
}

__device__ void record(const FusedArguments& a, const DeviceEvent& event) {
  const std::uint32_t index = atomicAdd(a.event_count, 1);
  if (index < a.event_capacity) a.events[index] = event;
}

}  // namespace
}  // namespace rowband::cuda
