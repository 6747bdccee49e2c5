// What leaves a block: pieces of tiles to where they belong, and the flag of a chunk after its
// last.
#pragma once

#include "rowband/engines/cuda/protocol_device.cuh"
#include "rowband/engines/cuda/shared_device.cuh"

namespace rowband::cuda {
namespace {

// The chunk's bytes are where they belong, or ready for the copy queues.
__device__ void signal_chunk(const FusedArguments& a, const DeviceTile& tile, std::uint32_t epoch) {
  if (a.drop_transfers) return;
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

// A multiplying group's errands, by a whole warp for the barriers' sake; its first lane sends.
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
      const bool own = tile.band == a_.rank;
      row_ = tile.rows.begin + group_ * 128;
      row_in_band_ = row_ - a_.order.rows_of(a_.order.band_tiles(tile.band)).begin;
      col_ = tile.cols.begin + static_cast<int>(ptx::block_of_cluster()) * kBlockCols;
      // Only here, where nothing of an earlier tile is left to send, may a wait for peers begin.
      if (own && a_.world > 1) await_partials(tile.chunk);
      if (a_.events != nullptr && lane_ == 0) {
        atomicCAS(reinterpret_cast<unsigned long long*>(a_.chunk_begin) +
                      tile.band * a_.order.chunks + tile.chunk,
                  0ull, ptx::clock_ns());
      }
      make_ready(0, own);
      make_ready(1, own);
      if (fp8 && own) {
        send_codes();
      } else {
        send_pieces(tile.band);
      }
      if (lane_ == 0) {
        ptx::store_wait_written();
        if (a_.world > 1) chunk_part_done(a_, tile, epoch_);
      }
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

  __device__ void send_pieces(int band) {
    const bool own = band == a_.rank;
    for (int piece = 0; piece < kPiecesPerTile; ++piece) {
      if (own) bring_other_partials(piece);
      ptx::named_barrier_sync(piece_full(group_, piece % 2), kSenderThreads);
      if (lane_ == 0) send(piece, band);
      __syncwarp();
      if (piece + 2 < kPiecesPerTile) make_ready(piece + 2, own);
    }
  }

  // The codes of a half lie in buffer 0, their scales beside the buffers.
  __device__ void send_codes() {
    for (int half = 0; half < 2; ++half) {
      bring_other_partials(2 * half);
      bring_other_partials(2 * half + 1);
      ptx::named_barrier_sync(piece_full(group_, 1), kSenderThreads);  // the last has been read
      if (half == 0) bring_partial(3, first_peer());
      ptx::named_barrier_sync(piece_full(group_, 0), kSenderThreads);
      if (lane_ == 0) send_half_codes(half);
      __syncwarp();
      if (half == 0) bring_partial(2, first_peer());
    }
  }

  __device__ void send_half_codes(int half) {
    const int row = row_ + half * 64;
    if (row >= a_.order.rows) return;
    // The copy queues take them from here.
    const int first = a_.copy_engine ? 0 : 1, end = places();
    for (int step = first; step < end; ++step) {
      const int peer = (a_.rank + step) % a_.world;
      ptx::tensor_store(&a_.codes_at[peer], shared_.piece(group_, 0), col_, row);
      if (col_ < a_.order.cols) {
        ptx::bulk_store(a_.code_scales_at[peer] + col_ / kDepth * a_.code_scale_rows + row,
                        shared_.code_scales + group_ * kCodeScaleBytes, kCodeScaleBytes);
      }
    }
    ptx::store_commit();
    ptx::store_wait_read<0>();
  }

  __device__ bool moves_bytes() const { return !a_.skip_transfers && !a_.drop_transfers; }
  // How many ranks, from the own one on, this kernel stores finished rows at.
  __device__ int places() const { return a_.copy_engine || !moves_bytes() ? 1 : a_.world; }

  __device__ int first_peer() const { return a_.rank == 0 ? 1 : 0; }
  __device__ int peer_after(int peer) const { return peer + 1 == a_.rank ? peer + 2 : peer + 1; }

  // The piece's buffer, whose earlier content has left, goes to the group: empty, or with the first
  // peer's partial.
  __device__ void make_ready(int piece, bool own) {
    if (own && a_.world > 1) return bring_partial(piece, first_peer());
    ptx::named_barrier_arrive(piece_empty(group_, piece % 2), kSenderThreads);
  }

  __device__ void bring_partial(int piece, int peer) {
    if (lane_ != 0) return;
    const std::uint32_t arrived = shared_.partial(group_, piece % 2);
    ptx::barrier_expect(arrived, kPieceBytes);
    ptx::tensor_load(shared_.piece(group_, piece % 2), &a_.received[peer],
                     col_ + piece % 2 * kPieceCols, row_in_band_ + piece / 2 * 64, arrived);
  }

  // Each once the group has read the one before.
  __device__ void bring_other_partials(int piece) {
    for (int peer = peer_after(first_peer()); peer < a_.world; peer = peer_after(peer)) {
      ptx::named_barrier_sync(piece_full(group_, piece % 2), kSenderThreads);
      bring_partial(piece, peer);
    }
  }

  // Returns once the buffer may be overwritten.
  __device__ void send(int piece, int band) {
    const std::uint32_t from = shared_.piece(group_, piece % 2);
    const int col = col_ + piece % 2 * kPieceCols, below = piece / 2 * 64;
    if (band != a_.rank) {
      if (!moves_bytes()) return;
      ptx::tensor_store(&a_.partials_to[band], from, col, row_in_band_ + below);
    } else {
      for (int step = 0; step < places(); ++step) {  // this rank's own first
        ptx::tensor_store(&a_.output_at[(a_.rank + step) % a_.world], from, col, row_ + below);
      }
    }
    ptx::store_commit();
    ptx::store_wait_read<0>();
  }

  const FusedArguments& a_;
  const Shared& shared_;
  const int group_, lane_;
  const std::uint32_t epoch_;
  int row_ = 0, row_in_band_ = 0, col_ = 0;  // of the group's part of the tile
};

}  // namespace
}  // namespace rowband::cuda
