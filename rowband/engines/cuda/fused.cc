#include "rowband/engines/cuda/fused.h"

#include <algorithm>
#include <functional>
#include <thread>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/planner.h"
#include "rowband/engines/cuda/tensor_map.h"
#include "rowband/engines/cuda/turns.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

// Of construction's proof that the ranks' kernels run at the same time; they begin it together.
constexpr std::chrono::nanoseconds kLongestProof = std::chrono::seconds(3);
constexpr int kEmptyCalls = 4;

// One chunk's wait and word pass while the other's bytes travel.
constexpr int kQueuesPerPeer = 2;

// Of a traced call: two a tile, and for a chunk its way, its arrival and each cluster's widening.
std::uint32_t most_events(const PlanSpec& spec, int clusters) {
  const auto parts = [](std::int64_t all, std::int64_t one) { return (all + one - 1) / one; };
  const std::int64_t tiles =
      parts(spec.max_rows, spec.min_tile_rows) * parts(spec.cols, spec.tile_cols);
  return static_cast<std::uint32_t>(2 * tiles + spec.world * spec.chunks * (2 + clusters));
}

}  // namespace

CudaFused::CudaFused(Communicator& comm, const PlanSpec& spec, const FusedOptions& options,
                     int device, int clusters, Start start, cudaStream_t own_stream)
    : spec_(spec),
      options_(options),
      rank_(comm.rank()),
      device_(device),
      clusters_(clusters),
      // Between the copy engine's calls stand its copies, not kernels alone.
      start_(spec.transport == Transport::kDirect ? start : Start::kAfterLast),
      own_stream_(own_stream),
      layout_(plan_window(spec, control_bytes(spec.world, spec.chunks))),
      last_stream_(own_stream) {
  const DeviceScope scope(device_);
  const Deadline deadline = Deadline::after(options.deadline);
  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  try {
    counters_ = allocate_device(counters_bytes(spec.world, spec.chunks, blocks()));
    host_status_ = allocate_pinned(sizeof(Status));
    last_call_ = make_event();
    // Before any wait is posted: loading code in a first launch could wait for a kernel that spins.
    load_fused_kernel();
    load_quantize_kernel();
    load_clock_exchange();
    timeline_ = std::make_unique<DeviceTimeline>(most_events(spec, clusters));
    if (spec.transport == Transport::kCopyEngine && spec.world > 1) {
      copies_ = std::make_unique<CopyQueues>(kQueuesPerPeer * (spec.world - 1),
                                             options.faults ? options.faults->late_copies : 0);
    }
    if (options.faults) {
      calls_ = options.faults->first_call - 1;
      preset_counters(counters_.get(), blocks(), calls_);
    }
    check(cudaDeviceSynchronize(), "preparing the counters");
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "what a call needs beside the window on the GPU", failure, code, deadline);
  window_ = make_window(comm, static_cast<std::size_t>(layout_.bytes), device_,
                        options.faults.get(), deadline);
  if (spec_.world > 1) prove_ranks_run_together(comm, deadline);
}

CudaFused::~CudaFused() {
  // A peer's kernel may still store here until this rank's last call, and so the peer's, has ended.
  const DeviceScope scope(device_, std::nothrow);
  cudaDeviceSynchronize();
}

bool CudaFused::in_window(const void* begin, std::int64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(begin);
  const std::less<> before;
  return before(first, part(rank_) + layout_.bytes) && before(part(rank_), first + bytes);
}

std::uint32_t* CudaFused::flags(int at_rank, std::uint32_t leg, int from) const {
  auto* words = reinterpret_cast<std::uint32_t*>(part(at_rank) + layout_.control);
  return words + (static_cast<int>(leg) * spec_.world + from) * spec_.chunks;
}

Card* CudaFused::cards(int at_rank, int from) const {
  auto* first = part(at_rank) + layout_.control + flags_bytes(spec_.world, spec_.chunks);
  return reinterpret_cast<Card*>(first) + 2 * from;
}

Status* CudaFused::failure(int at_rank, int from) const {
  return reinterpret_cast<Status*>(cards(at_rank, spec_.world)) + from;
}

std::string CudaFused::poison() const {
  const auto* status = static_cast<const volatile Status*>(host_status_.get());
  switch (status->code) {
    case Status::kFine:
      return half_queued_;
    case Status::kRefusal:
      return fmt::format("rank {} refused a call that rank {} made", status->peer, status->rank);
    case Status::kDifferentRows:
      return fmt::format(
          "the ranks passed different M to one call: rank {} passed {}, rank {} passed {}",
          status->rank, status->own, status->peer, status->theirs);
    case Status::kDifferentSlots:
      return fmt::format(
          "the ranks write one call's result into different output slots: rank {} into {}, rank {} "
          "into {}. A captured call keeps its slot, so all ranks capture and replay the same calls",
          status->rank, status->own, status->peer, status->theirs);
    default:
      break;
  }
  const double seconds = std::chrono::duration<double>(options_.deadline).count();
  if (status->leg == kStartLeg) {
    return fmt::format("rank {} waited {:.3g} s for rank {} to begin the call", status->rank,
                       seconds, status->peer);
  }
  if (status->leg == kCopyLeg) {
    return fmt::format("rank {} waited {:.3g} s for its copy of chunk {} to rank {}", status->rank,
                       seconds, status->chunk, status->peer);
  }
  return fmt::format("rank {} waited {:.3g} s for chunk {} of rank {} ({} leg)", status->rank,
                     seconds, status->chunk, status->peer,
                     status->leg == kScatterLeg ? "scatter" : "gather");
}

std::int64_t CudaFused::output_slot() const {
  return layout_.output + calls_ % spec_.slots * spec_.max_rows * spec_.cols *
                              static_cast<std::int64_t>(sizeof(Bf16));
}

void CudaFused::point_to_windows(FusedArguments& a, const CallPlan& plan) const {
  std::byte* own = part(rank_);
  a.codes = reinterpret_cast<const E4m3*>(own + layout_.gather_codes);
  a.code_scales = reinterpret_cast<const float*>(own + layout_.gather_scales);
  a.code_scale_rows = layout_.scale_block_stride;
  a.output = reinterpret_cast<Bf16*>(own + output_slot());
  a.slot = static_cast<std::uint32_t>(calls_ % spec_.slots);
  for (int peer = 0; peer < spec_.world; ++peer) {
    if (plan.rows() > 0) {
      a.output_at[peer] =
          map_bf16(part(peer) + output_slot(), plan.rows(), spec_.cols, spec_.cols, kPieceRows);
    }
    if (a.fp8_wire && plan.rows() > 0) {
      a.codes_at[peer] = map_e4m3(part(peer) + layout_.gather_codes, plan.rows(), spec_.cols,
                                  spec_.cols, kPieceRows);
      a.code_scales_at[peer] = reinterpret_cast<float*>(part(peer) + layout_.gather_scales);
    }
    if (peer == rank_) continue;
    if (const Range band = plan.band(peer); band.size() > 0) {
      std::byte* partials = a.copy_engine ? own + layout_.staging_row(rank_, peer, 0)
                                          : part(peer) + layout_.received_row(peer, rank_, 0);
      a.packed_at[peer] = partials;
      a.packing_heads_at[peer] = part(peer) + layout_.packing_heads_of(peer, rank_);
      a.partials_to[peer] = map_bf16(partials, band.size(), spec_.cols, spec_.cols, kPieceRows);
    }
    if (const Range band = plan.band(rank_); band.size() > 0) {
      a.packed[peer] = part(rank_) + layout_.received_row(rank_, peer, 0);
      a.packing_heads[peer] = part(rank_) + layout_.packing_heads_of(rank_, peer);
      a.received[peer] = map_bf16(part(rank_) + layout_.received_row(rank_, peer, 0), band.size(),
                                  spec_.cols, spec_.cols, kPieceRows);
    }
    a.scatter_flags_at[peer] = flags(peer, kScatterLeg, rank_);
    a.gather_flags_at[peer] = flags(peer, kGatherLeg, rank_);
    a.card_at[peer] = cards(peer, rank_);
    a.scatter_flags[peer] = flags(rank_, kScatterLeg, peer);
    a.gather_flags[peer] = flags(rank_, kGatherLeg, peer);
    a.card[peer] = cards(rank_, peer);
    a.failure_at[peer] = failure(peer, rank_);
    a.failure[peer] = failure(rank_, peer);
  }
}

FusedArguments CudaFused::arguments(const FusedCall& call, const CallPlan& plan) {
  FusedArguments a = call_arguments(call, plan, rank_, spec_.world);
  a.fp8_wire = spec_.wire == Wire::kFp8 && spec_.world > 1;
  a.copy_engine = copies_ != nullptr;
  a.packed_chunks = spec_.packed_chunks;
  a.pieces_on_link = pieces_on_link(spec_, plan);
  if (options_.faults) {
    a.skip_transfers = calls_ >= options_.faults->skip_transfers_from;
    a.drop_transfers = calls_ >= options_.faults->drop_transfers_from;
    a.skip_only_chunk = options_.faults->skip_only_chunk.value_or(-1);
    a.jitter_ns =
        static_cast<std::uint32_t>(std::chrono::nanoseconds(options_.faults->jitter).count());
    a.pieces_on_link = options_.faults->pieces_on_link.value_or(a.pieces_on_link);
  }
  point_to_windows(a, plan);
  a.blocks = blocks();
  point_to_counters(a, counters_.get());
  a.host_status = static_cast<Status*>(host_status_.get());
  set_deadline(a, options_.deadline);
  return a;
}

// Calls without rows, in which a rank waits for nothing but its peers' start. The ranks of one GPU
// and process queue theirs one rank after the other, on two streams as a caller may, so that queues
// that collapse, or launches that wait for their kernel, keep a peer from starting.
void CudaFused::prove_ranks_run_together(Communicator& comm, Deadline deadline) {
  const DeviceScope scope(device_);
  Stream second;
  const auto patience = std::min(options_.deadline, kLongestProof);
  std::string failure;
  take_turns(comm, device_, deadline, [&] {
    try {
      second = make_stream();
      queue_empty_calls(second.get(), patience);
    } catch (const Error& error) {
      failure = error.what();
    }
  });
  if (failure.empty()) failure = why_peers_did_not_begin(patience);
  if (failure.empty() && copies_ && timeline_->launches_block(own_stream_)) {
    failure =
        "a launch returns only when its kernel has ended, and transport copy_engine queues its "
        "copies after it: unset CUDA_LAUNCH_BLOCKING, or take transport direct";
  }
  agree_on_success(comm, "the ranks' kernels at the same time", failure, ErrorCode::kUnavailable,
                   deadline);
}

void CudaFused::queue_empty_calls(cudaStream_t second, std::chrono::nanoseconds patience) {
  for (int i = 0; i < kEmptyCalls; ++i) {
    const cudaStream_t stream = i % 2 == 0 ? own_stream_ : second;
    ++calls_;
    follow_last_call(stream);
    FusedArguments a = arguments({}, CallPlan(spec_, 0));
    set_deadline(a, patience);
    if (copies_) copies_->fork(stream);
    launch_fused(a, clusters_, start_, stream);
    if (copies_) copies_->join(stream);
  }
  follow_last_call(own_stream_);
}

// "" once they have.
std::string CudaFused::why_peers_did_not_begin(std::chrono::nanoseconds patience) const {
  if (const cudaError_t result = cudaStreamSynchronize(own_stream_); result != cudaSuccess) {
    return fmt::format("the first calls failed: {}", cudaGetErrorString(result));
  }
  if (poison().empty()) return "";
  const auto* status = static_cast<const volatile Status*>(host_status_.get());
  return fmt::format(
      "the kernel of rank {} waited {:.3g} s and that of rank {} did not begin: they do not run at "
      "the same time. Ranks of one process that share a GPU need CUDA_LAUNCH_BLOCKING to be unset "
      "and CUDA_DEVICE_MAX_CONNECTIONS to be at least the number of their streams (32 is right)",
      status->rank, std::chrono::duration<double>(patience).count(), status->peer);
}

void CudaFused::follow_last_call(cudaStream_t stream) {
  if (stream == last_stream_) return;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &capture), "asking whether the stream is captured");
  if (capture != cudaStreamCaptureStatusNone) return;
  check(cudaEventRecord(last_call_.get(), last_stream_), "marking the last call's end");
  check(cudaStreamWaitEvent(stream, last_call_.get()), "following the last call");
  last_stream_ = stream;
}

// In the order in which the kernel finishes, and all partials before any result: queues that share
// a hardware queue go on in the order of posting, and no partial may wait behind a result, which
// waits for the peers' partials.
void CudaFused::queue_copies(const FusedArguments& a, const CallPlan& plan) {
  if (a.drop_transfers) return;
  const std::int64_t partial_bytes = spec_.cols * static_cast<std::int64_t>(sizeof(Bf16));
  const bool codes = spec_.wire == Wire::kFp8;
  const std::int64_t results = codes ? layout_.gather_codes : output_slot();
  const std::int64_t result_bytes = codes ? spec_.cols : partial_bytes;
  const auto send = [&](std::uint32_t leg, int peer, int chunk, std::int64_t from, std::int64_t to,
                        std::int64_t bytes) {
    const int queue = kQueuesPerPeer * peer_slot(rank_, peer, spec_.world) + chunk % kQueuesPerPeer;
    const bool skipped = a.skip_transfers && (a.skip_only_chunk < 0 || a.skip_only_chunk == chunk);
    copies_->send(queue,
                  {a.ready[leg][peer] + chunk, part(peer) + to, part(rank_) + from,
                   skipped ? 0 : static_cast<std::size_t>(bytes), a.copied[leg][peer] + chunk});
  };
  for (int chunk = 0; chunk < spec_.chunks; ++chunk) {
    for (int step = 1; step < spec_.world; ++step) {
      const int peer = (rank_ + step) % spec_.world;
      if (chunk >= plan.chunks(peer)) continue;
      const Range rows = plan.chunk(peer, chunk);
      const std::int64_t first = rows.begin - plan.band(peer).begin;
      send(kScatterLeg, peer, chunk, layout_.staging_row(rank_, peer, first),
           layout_.received_row(peer, rank_, first), rows.size() * partial_bytes);
    }
  }
  for (int chunk = 0; chunk < plan.chunks(rank_); ++chunk) {
    const Range rows = plan.chunk(rank_, chunk);
    const std::int64_t at = results + rows.begin * result_bytes;
    for (int step = 1; step < spec_.world; ++step) {
      send(kGatherLeg, (rank_ + step) % spec_.world, chunk, at, at, rows.size() * result_bytes);
    }
  }
}

const Bf16* CudaFused::run(const FusedCall& call) {
  if (const std::string reason = poison(); !reason.empty()) {
    fail(ErrorCode::kPoisoned, "an earlier call failed: {}", reason);
  }
  const DeviceScope scope(device_);
  ++calls_;
  if (options_.faults &&
      (calls_ == options_.faults->delay_call || calls_ >= options_.faults->delay_from)) {
    std::this_thread::sleep_for(options_.faults->delay);
  }
  const cudaStream_t stream = stream_of(call.stream);
  bool launched = false;
  try {
    queue_call(call, stream, launched);
  } catch (const Error& error) {
    // The peers count this call, and the kernel may run without its copies.
    half_queued_ = fmt::format("rank {} could not queue a call: {}", rank_, error.what());
    if (!launched) try_to_refuse(stream);
    throw;
  }
  if (call.timeline != nullptr) timeline_->collect(*call.timeline, rank_, stream);
  return reinterpret_cast<const Bf16*>(part(rank_) + output_slot());
}

void CudaFused::queue_call(const FusedCall& call, cudaStream_t stream, bool& launched) {
  const CallPlan plan(spec_, call.x.rows);
  if (options_.faults && calls_ == options_.faults->throw_in_call) {
    fail(ErrorCode::kInternal, "call {}: ordered by a fault hook", calls_);
  }
  follow_last_call(stream);
  FusedArguments a = arguments(call, plan);
  if (call.timeline != nullptr) timeline_->point(a);
  if (copies_) copies_->fork(stream);
  launch_fused(a, clusters_, start_, stream);
  launched = true;
  if (copies_) {
    queue_copies(a, plan);
    copies_->join(stream);
  }
}

// So that the peers need not wait for their deadline; where this fails too, that ends their wait.
void CudaFused::try_to_refuse(cudaStream_t stream) {
  try {
    launch_refuse(arguments({}, CallPlan(spec_, 0)), stream);
  } catch (const Error&) {
  }
}

void CudaFused::refuse(void* stream) {
  const DeviceScope scope(device_);
  ++calls_;
  follow_last_call(stream_of(stream));
  launch_refuse(arguments({}, CallPlan(spec_, 0)), stream_of(stream));
}

}  // namespace rowband::cuda
