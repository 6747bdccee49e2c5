// The peers' side of a call: its announcement, what the copy engine brought them, the wait for
// their results, the fp8 wire's widening.
#pragma once

#include "rowband/engines/cuda/protocol_device.cuh"
#include "rowband/engines/cuda/quantize_device.cuh"

namespace rowband::cuda {
namespace {

__device__ bool await_begun(const FusedArguments& a, int peer, std::uint64_t call) {
  return await(a, &a.card[peer][call % 2].epoch, epoch_of(call), kStartLeg, peer, 0);
}

// False once the call has failed: then the card before stays, so that the peer reads it. Card k
// overwrites card k - 2, which the peer may have to read until it begins call k - 1. A rank that
// ran k - 1 has seen that; one that refused it waits for that here.
__device__ bool announce(const FusedArguments& a, int peer, std::uint64_t call, std::int64_t rows) {
  if (failed(a)) return false;
  if (*a.call_after_refusal == call && !await_begun(a, peer, call - 1)) return false;
  Card* card = a.card_at[peer] + call % 2;
  *reinterpret_cast<volatile std::int64_t*>(&card->rows) = rows;
  *reinterpret_cast<volatile std::uint32_t*>(&card->slot) = a.slot;
  ptx::store_release_system(&card->epoch, epoch_of(call));
  return true;
}

__global__ void refuse_call(const __grid_constant__ FusedArguments a) {
  const std::uint64_t call = this_call(a);
  for (int peer = 0; peer < a.world; ++peer) {
    if (peer != a.rank) announce(a, peer, call, kRefused);
  }
  *a.call_after_refusal = call + 1;
  clear(a, tally(a, call + 1), 0, 1);
  for (int block = 0; block < a.blocks; ++block) a.calls[block] = call;
}

// One warp of the first block: lane p deals with peer p.
__device__ void announce_call(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  const std::uint64_t call = this_call(a);
  if (peer >= a.world || peer == a.rank) return;
  if (!announce(a, peer, call, a.order.rows) || !await_begun(a, peer, call)) return;

  const auto differs = [&](Status::Code code, std::int64_t own, std::int64_t theirs) {
    fail_call(a, {code, static_cast<std::uint32_t>(a.rank), kStartLeg,
                  static_cast<std::uint32_t>(peer), 0, 0, own, theirs});
  };
  const Card* from = a.card[peer] + call % 2;
  const std::int64_t rows = *reinterpret_cast<const volatile std::int64_t*>(&from->rows);
  const std::uint32_t slot = *reinterpret_cast<const volatile std::uint32_t*>(&from->slot);
  if (rows == kRefused) {
    differs(Status::kRefusal, 0, 0);
  } else if (rows != a.order.rows) {
    differs(Status::kDifferentRows, a.order.rows, rows);
  } else if (slot != a.slot) {
    differs(Status::kDifferentSlots, a.slot, slot);
  }
}

// Stream waits have no deadline of their own: a failed call opens them all. What is copied then is
// not passed on, so no peer takes it for a result.
__device__ void open_stream_waits(const FusedArguments& a, int peer) {
  for (int chunk = 0; chunk < a.order.chunks; ++chunk) {
    ptx::store_release_system(a.ready[kScatterLeg][peer] + chunk, 1);
    ptx::store_release_system(a.ready[kGatherLeg][peer] + chunk, 1);
  }
}

// copy_engine, by one warp: lane p tells peer p of each chunk that has been copied there. The copy
// engine itself would take longer over four bytes than over a megabyte.
__device__ void pass_on_copies(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  if (a.drop_transfers || peer >= a.world || peer == a.rank) return;
  const std::uint32_t epoch = epoch_of(this_call(a));
  for (const std::uint32_t leg : {kScatterLeg, kGatherLeg}) {
    const int chunks = a.order.chunk_count(leg == kScatterLeg ? peer : a.rank);
    std::uint32_t* flags = (leg == kScatterLeg ? a.scatter_flags_at : a.gather_flags_at)[peer];
    for (int chunk = 0; chunk < chunks; ++chunk) {
      std::uint32_t* copied = a.copied[leg][peer] + chunk;
      if (!await(a, copied, 1, kCopyLeg, peer, chunk) || failed(a)) {
        return open_stream_waits(a, peer);
      }
      *copied = 0;
      ptx::store_release_system(flags + chunk, epoch);
    }
  }
}

__device__ void await_results(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  if (peer >= a.world || peer == a.rank) return;
  const std::uint32_t epoch = epoch_of(this_call(a));
  for (int chunk = 0; chunk < a.order.chunk_count(peer); ++chunk) {
    const std::uint64_t begin = ptx::clock_ns();
    if (!await(a, a.gather_flags[peer] + chunk, epoch, kGatherLeg, peer, chunk)) return;
    if (a.events != nullptr) {
      record(a, {begin, ptx::clock_ns(), DeviceEvent::kArrival, -1, peer, chunk, 0, 0});
    }
  }
}

// fp8 wire: the peers' finished rows become bf16 as they arrive. Any warp may take part: pieces are
// dealt out by a counter, in the order in which they arrive.
class Widener {
 public:
  __device__ explicit Widener(const FusedArguments& a)
      : a_(a),
        lane_(threadIdx.x % 32),
        epoch_(epoch_of(this_call(a))),
        widened_(tally(a, this_call(a)).widened) {}

  __device__ void run() {
    const int pieces_across = (a_.order.cols + kCols - 1) / kCols;
    int before = 0;  // pieces in the chunks behind
    for (int chunk = 0; chunk < a_.order.chunks; ++chunk) {
      for (int step = 1; step < a_.world; ++step) {
        const int peer = (a_.rank + a_.world - step) % a_.world;
        if (chunk >= a_.order.chunk_count(peer)) continue;
        const auto rows = a_.order.rows_of(a_.order.chunk_tiles(peer, chunk));
        const int pieces = (rows.size() + kRows - 1) / kRows * pieces_across;
        if (taken_ < 0) take();
        if (taken_ - before >= pieces) {
          before += pieces;
          continue;
        }
        if (!chunk_arrived(peer, chunk)) return;
        const auto begin_ns = static_cast<std::uint32_t>(ptx::clock_ns());  // a register less
        for (; taken_ - before < pieces; take()) {
          const int down = (taken_ - before) / pieces_across;
          const int across = taken_ - before - down * pieces_across;
          const int row = rows.begin + down * kRows, col = across * kCols;
          widen_piece(row, min(rows.end - row, kRows), col, min(col + kCols, a_.order.cols));
        }
        if (a_.events != nullptr && threadIdx.x == kSpeaker && ptx::block_of_cluster() == 0) {
          const std::uint64_t end_ns = ptx::clock_ns();
          record(a_, {end_ns - (static_cast<std::uint32_t>(end_ns) - begin_ns), end_ns,
                      DeviceEvent::kWiden, static_cast<int>(blockIdx.x / 2), peer, chunk,
                      rows.begin, 0});
        }
        before += pieces;
      }
    }
  }

 private:
  static constexpr int kSpeaker = 15 * 32;  // of the warp that widens from the start
  // Of a piece: so small that at a call's end every warp has some.
  static constexpr int kRows = 2, kCols = 2048;
  static constexpr int kColsPerLane = 16;

  __device__ void take() {
    int taken = 0;
    if (lane_ == 0) taken = static_cast<int>(atomicAdd(widened_, 1));
    taken_ = __shfl_sync(0xFFFFFFFFu, taken, 0);
  }

  __device__ bool chunk_arrived(int peer, int chunk) const {
    bool arrived = true;
    if (lane_ == 0) {
      arrived = await(a_, a_.gather_flags[peer] + chunk, epoch_, kGatherLeg, peer, chunk);
    }
    arrived = __shfl_sync(0xFFFFFFFFu, arrived, 0);
    __syncwarp();  // what the first lane acquired, for all
    return arrived;
  }

  __device__ void widen_piece(int begin, int rows, int col_begin, int col_end) const {
    const std::int64_t first = static_cast<std::int64_t>(begin) * a_.order.cols;
    for (int col = col_begin + lane_ * kColsPerLane; col < col_end; col += 32 * kColsPerLane) {
      const E4m3* from = a_.codes + first + col;
      const float* scale = a_.code_scales + col / kDepth * a_.code_scale_rows + begin;
      uint4 codes[kRows];
      float scales[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += a_.order.cols) {
        if (i < rows) {
          codes[i] = ptx::load_past_first_level(from);
          scales[i] = ptx::load_float_past_first_level(scale + i);
        }
      }
      auto* out = a_.output + first + col;
#pragma unroll
      for (int i = 0; i < kRows; ++i, out += a_.order.cols) {
        if (i < rows) {
          ptx::store_global(out, widen(codes[i].x, codes[i].y, scales[i]));
          ptx::store_global(out + 8, widen(codes[i].z, codes[i].w, scales[i]));
        }
      }
    }
  }

  __device__ static uint4 widen(std::uint32_t left, std::uint32_t right, float scale) {
    return {widen_codes(left & 0xFFFF, scale), widen_codes(left >> 16, scale),
            widen_codes(right & 0xFFFF, scale), widen_codes(right >> 16, scale)};
  }

  const FusedArguments& a_;
  const int lane_;
  const std::uint32_t epoch_;
  std::uint32_t* const widened_;
  int taken_ = -1;
};

}  // namespace
}  // namespace rowband::cuda
