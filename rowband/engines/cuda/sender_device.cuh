// What leaves a block: pieces of tiles to where they belong, and the flag of a chunk after its
// last.
#pragma once

#include "rowband/engines/cuda/protocol_device.cuh"
#include "rowband/engines/cuda/shared_device.cuh"

namespace rowband::cuda {
namespace {

// The chunk's bytes are where they belong, or ready for the copy queues.
__device__ void signal_chunk(const FusedArguments& a, const DeviceTile& tile, std::uint32_t epoch) {
  if (a.drop_transfers || failed(a)) return;  // what a failed call made is no result
  const bool own = tile.band == a.rank;
  if (a.copy_engine) {
    *reinterpret_cast<volatile std::uint32_t*>(a.epoch) = epoch;
    __threadfence_system();
  }
  for (int step = 1; step < a.world; ++step) {
    const int peer = (a.rank + step) % a.world;
    if (!own && peer != tile.band) continue;
    if (a.copy_engine) {
      ptx::store_release_system(a.ready[own ? kGatherLeg : kScatterLeg][peer] + tile.chunk, 1);
    } else {
      ptx::store_release_system((own ? a.gather_flags_at : a.scatter_flags_at)[peer] + tile.chunk,
                                epoch);
    }
  }
}

// The last part of a chunk to be written signals it.
__device__ void chunk_part_done(const FusedArguments& a, const DeviceTile& tile,
                                std::uint32_t epoch) {
  ptx::fence_async_global();
  __threadfence_system();
  const int index = tile.band * a.order.chunks + tile.chunk;
  const auto parts =
      static_cast<std::uint32_t>(2 * kGroups * a.order.tiles_in_chunk(tile.band, tile.chunk));
  if (atomicAdd(a.chunk_done + index, 1) + 1 != parts) return;
  __threadfence_system();
  signal_chunk(a, tile, epoch);
  if (a.events != nullptr) {
    record(a, {a.chunk_begin[index], ptx::clock_ns(), DeviceEvent::kSend, -1, tile.band, tile.chunk,
               0, 0});
  }
}

// A multiplying group's errands, by a whole warp, which waits together for the peers; its first
// lane does the rest.
template <bool fp8>
class Sender {
 public:
  __device__ Sender(const FusedArguments& a, const Shared& shared, int group)
      : a_(a),
        shared_(shared),
        group_(group),
        lane_(threadIdx.x % 32),
        epoch_(epoch_of(*a.calls + 1)) {}

  __device__ void run() {
    for (DeviceTileWalk walk = first_tile(a_); !walk.done(); walk.advance(clusters())) {
      const DeviceTile tile = walk.tile();
      // Only here, where nothing of an earlier tile is left to send, may a wait for peers begin.
      own_ = tile.band == a_.rank;
      if (own_ && a_.world > 1) await_partials(tile.chunk);
      if (lane_ == 0) send_tile(tile);
      __syncwarp();
    }
  }

 private:
  __device__ void await_partials(int chunk) {
    if (lane_ < a_.world && lane_ != a_.rank) {
      await(a_, a_.scatter_flags[lane_] + chunk, epoch_, kScatterLeg, lane_, chunk);
    }
    __syncwarp();
    ptx::fence_async_global();
  }

  __device__ void send_tile(const DeviceTile& tile) {
    if (a_.events != nullptr) {
      atomicCAS(reinterpret_cast<unsigned long long*>(a_.chunk_begin) +
                    tile.band * a_.order.chunks + tile.chunk,
                0ull, ptx::clock_ns());
    }
    row_ = tile.rows.begin + group_ * 128;
    row_in_band_ = row_ - a_.order.rows_of(a_.order.band_tiles(tile.band)).begin;
    col_ = tile.cols.begin + static_cast<int>(ptx::block_of_cluster()) * kBlockCols;
    chunk_ = tile.chunk;
    alive_ = !failed(a_);
    hesitate();
    for (int piece = 0; piece < kPiecesPerTile; ++piece) make_ready(piece);
    if (fp8 && own_) {
      for (int half = 0; half < 2; ++half) send_codes(half);
    } else {
      for (int piece = 0; piece < kPiecesPerTile; ++piece) send_piece(piece, tile.band);
    }
    if (a_.world > 1) chunk_part_done(a_, tile, epoch_);
  }

  // The piece's buffer, whose earlier content has left, goes to the group: empty, or with the first
  // peer's partial.
  __device__ void make_ready(int piece) {
    if (own_ && a_.world > 1) return bring_partial(piece, first_peer());
    ptx::barrier_arrive(shared_.buffer_ready(group_, piece));
  }

  __device__ void bring_partial(int piece, int peer) {
    const std::uint32_t arrived = shared_.buffer_ready(group_, piece);
    ptx::barrier_expect(arrived, kPieceBytes);
    ptx::tensor_load(shared_.piece(group_, piece), &a_.received[peer],
                     col_ + piece % 2 * kPieceCols, row_in_band_ + piece / 2 * 64, arrived);
  }

  // Each once the group has read the one before.
  __device__ void bring_other_partials(int piece) {
    for (int peer = peer_after(first_peer()); peer < a_.world; peer = peer_after(peer)) {
      await_written(piece);
      bring_partial(piece, peer);
    }
  }

  __device__ void await_written(int piece) {
    written_.wait(shared_.buffer_written(group_, piece), piece);
  }

  __device__ void send_piece(int piece, int band) {
    if (own_ && a_.world > 1) bring_other_partials(piece);
    await_written(piece);
    const std::uint32_t from = shared_.piece(group_, piece);
    const int col = col_ + piece % 2 * kPieceCols, below = piece / 2 * 64;
    if (own_) {
      for (int step = 0; step < places(); ++step) {  // this rank's own first
        ptx::tensor_store(&a_.output_at[(a_.rank + step) % a_.world], from, col, row_ + below);
      }
    } else if (moves_bytes()) {
      ptx::tensor_store(&a_.partials_to[band], from, col, row_in_band_ + below);
    }
    finish_stores();
  }

  // One piece of a group at a time: with more on their way the operands' loads stand behind them.
  __device__ static void finish_stores() {
    ptx::store_commit();
    ptx::store_wait_written();
  }

  // The codes of a half lie in its left piece's buffer.
  __device__ void send_codes(int half) {
    const int left = 2 * half, right = left + 1;
    bring_other_partials(left);
    bring_other_partials(right);
    await_written(right);  // the last partial has been read
    await_written(left);
    store_codes(half);
    finish_stores();
  }

  __device__ void store_codes(int half) {
    const int row = row_ + half * 64;
    if (row >= a_.order.rows) return;
    // For the copy engine to the own window, from where its queues take them.
    const int first = a_.copy_engine ? 0 : 1;
    for (int step = first; step < places(); ++step) {
      const int rank = (a_.rank + step) % a_.world;
      ptx::tensor_store(&a_.codes_at[rank], shared_.piece(group_, 2 * half), col_, row);
      if (col_ < a_.order.cols) {
        ptx::bulk_store(a_.code_scales_at[rank] + col_ / kDepth * a_.code_scale_rows + row,
                        shared_.code_scale(group_, half), kCodeScaleBytes);
      }
    }
  }

  // A call that has failed writes nothing at its peers: they may still be in an earlier one.
  __device__ bool moves_bytes() const {
    if (a_.drop_transfers || !alive_) return false;
    return !a_.skip_transfers || (a_.skip_only_chunk >= 0 && a_.skip_only_chunk != chunk_);
  }
  // How many ranks, from the own one on, this kernel stores finished rows at.
  __device__ int places() const { return a_.copy_engine || !moves_bytes() ? 1 : a_.world; }

  // A random time, for tests.
  __device__ void hesitate() const {
    if (a_.jitter_ns == 0) return;
    const std::uint64_t begin = ptx::clock_ns();
    const std::uint64_t mixed =
        (begin + blockIdx.x * 977 + threadIdx.x) * 0x9E3779B97F4A7C15u >> 32;
    while (ptx::clock_ns() - begin < mixed % a_.jitter_ns) __nanosleep(100);
  }

  __device__ int first_peer() const { return a_.rank == 0 ? 1 : 0; }
  __device__ int peer_after(int peer) const { return peer + 1 == a_.rank ? peer + 2 : peer + 1; }

  const FusedArguments& a_;
  const Shared& shared_;
  const int group_, lane_;
  const std::uint32_t epoch_;
  Phases written_;
  bool own_ = false, alive_ = true;
  int chunk_ = 0;
  int row_ = 0, row_in_band_ = 0, col_ = 0;  // of the group's part of the tile
};

}  // namespace
}  // namespace rowband::cuda
