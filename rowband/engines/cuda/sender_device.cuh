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
      static_cast<std::uint32_t>(2 * kSenders * a.order.tiles_in_chunk(tile.band, tile.chunk));
  if (atomicAdd(a.chunk_done + index, 1) + 1 != parts) return;
  __threadfence_system();
  signal_chunk(a, tile, epoch);
  if (a.events != nullptr) {
    record(a, {a.chunk_begin[index], ptx::clock_ns(), DeviceEvent::kSend, -1, tile.band, tile.chunk,
               0, 0});
  }
}

// The errands of the multiplying groups' left or right pieces, by a whole warp, which waits
// together for the peers; its first lane does the rest.
template <bool fp8>
class Sender {
 public:
  __device__ Sender(const FusedArguments& a, const Shared& shared, int side)
      : a_(a),
        shared_(shared),
        side_(side),
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
    row_ = tile.rows.begin;
    row_in_band_ = row_ - a_.order.rows_of(a_.order.band_tiles(tile.band)).begin;
    col_ = tile.cols.begin + static_cast<int>(ptx::block_of_cluster()) * kBlockCols +
           side_ * kPieceCols;
    chunk_ = tile.chunk;
    alive_ = !failed(a_);
    hesitate();
    for (int group = 0; group < groups(a_); ++group) make_ready(group);
    for (int group = 0; group < groups(a_); ++group) {
      if (own_ && a_.world > 1) bring_other_partials(group);
      await_written(group);
      if (!(fp8 && own_)) {
        send_piece(group, tile.band);
      } else if (side_ == 0) {
        send_codes(group);  // of the whole width; the right piece's buffer held partials only
      }
      // One piece at a time: with more on their way the operands' loads stand behind them.
      ptx::store_commit();
      ptx::store_wait_written();
    }
    if (a_.world > 1) chunk_part_done(a_, tile, epoch_);
  }

  // The piece's buffer, whose earlier content has left, goes to the group: empty, or with the first
  // peer's partial.
  __device__ void make_ready(int group) {
    if (own_ && a_.world > 1) return bring_partial(group, first_peer());
    ptx::barrier_arrive(shared_.buffer_ready(group, side_));
  }

  __device__ void bring_partial(int group, int peer) {
    const std::uint32_t arrived = shared_.buffer_ready(group, side_);
    ptx::barrier_expect(arrived, kPieceBytes);
    ptx::tensor_load(shared_.piece(group, side_), &a_.received[peer], col_,
                     row_in_band_ + group * kGroupRows, arrived);
  }

  // Each once the group has read the one before.
  __device__ void bring_other_partials(int group) {
    for (int peer = peer_after(first_peer()); peer < a_.world; peer = peer_after(peer)) {
      await_written(group);
      bring_partial(group, peer);
    }
  }

  __device__ void await_written(int group) {
    written_.wait(shared_.buffer_written(group, side_), group);
  }

  __device__ void send_piece(int group, int band) {
    const std::uint32_t from = shared_.piece(group, side_);
    const int below = group * kGroupRows;
    if (own_) {
      for (int step = 0; step < places(); ++step) {  // this rank's own first
        ptx::tensor_store(&a_.output_at[(a_.rank + step) % a_.world], from, col_, row_ + below);
      }
    } else if (moves_bytes()) {
      ptx::tensor_store(&a_.partials_to[band], from, col_, row_in_band_ + below);
    }
  }

  __device__ void send_codes(int group) {
    const int row = row_ + group * kGroupRows;
    if (row >= a_.order.rows) return;
    if (a_.copy_engine) {  // its queues take the codes from the own window
      ptx::tensor_store(&a_.codes_at[a_.rank], shared_.piece(group, side_), col_, row);
    }
    if (!moves_bytes()) return;
    for (int step = 1; step < a_.world; ++step) {
      const int rank = (a_.rank + step) % a_.world;
      if (!a_.copy_engine) {
        ptx::tensor_store(&a_.codes_at[rank], shared_.piece(group, side_), col_, row);
      }
      if (col_ < a_.order.cols) {  // small, and not side by side: no work for the copy engine
        ptx::bulk_store(a_.code_scales_at[rank] + col_ / kDepth * a_.code_scale_rows + row,
                        shared_.code_scale(group), kCodeScaleBytes);
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
  const int side_, lane_;
  const std::uint32_t epoch_;
  Phases written_;
  bool own_ = false, alive_ = true;
  int chunk_ = 0;
  int row_ = 0, row_in_band_ = 0, col_ = 0;  // of the tile's pieces
};

}  // namespace
}  // namespace rowband::cuda
