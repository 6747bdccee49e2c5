// What leaves a block: pieces of tiles to where they belong, and the flag of a chunk after its
// last.
#pragma once

#include "rowband/engines/cuda/packed_device.cuh"
#include "rowband/engines/cuda/protocol_device.cuh"
#include "rowband/engines/cuda/shared_device.cuh"

namespace rowband::cuda {
namespace {

// The chunk's bytes are where they belong, or ready for the copy queues: the caller, a fence_system
// behind it, has seen all of them written.
__device__ void signal_chunk(const FusedArguments& a, int band, int chunk, std::uint32_t epoch) {
  if (a.drop_transfers || failed(a)) return;  // what a failed call made is no result
  const bool own = band == a.rank;
  for (int step = 1; step < a.world; ++step) {
    const int peer = (a.rank + step) % a.world;
    if (!own && peer != band) continue;
    if (a.copy_engine) {
      ptx::store_relaxed_system(a.ready[own ? kGatherLeg : kScatterLeg][peer] + chunk, 1);
    } else {
      ptx::store_relaxed_system((own ? a.gather_flags_at : a.scatter_flags_at)[peer] + chunk,
                                epoch);
    }
  }
}

// The last parts of a chunk to be written signal it.
__device__ void chunk_parts_done(const FusedArguments& a, const Tally& counts, int band, int chunk,
                                 std::uint32_t done, std::uint32_t epoch) {
  ptx::fence_async_global();
  ptx::fence_device();
  const int index = band * a.order.chunks + chunk;
  const auto parts = static_cast<std::uint32_t>(2 * kSenders * a.order.tiles_in_chunk(band, chunk));
  if (atomicAdd(counts.chunk_done + index, done) + done != parts) return;
  ptx::fence_system();  // one for both: the other parts' writes acquired, all of them released
  signal_chunk(a, band, chunk, epoch);
  if (a.events != nullptr) {
    record(a,
           {counts.chunk_begin[index], ptx::clock_ns(), DeviceEvent::kSend, -1, band, chunk, 0, 0});
  }
}

// Keeps the copies of pieces on their way to the peers to as many as the link carries, in order of
// asking. Who has a place waits for nothing but its own stores, so each comes free again.
class LinkPlaces {
 public:
  __device__ explicit LinkPlaces(const FusedArguments& a)
      : a_(a), arrived_(a.pieces_on_link > 0 ? arrivals() : 0) {}

  __device__ void take(int copies) {
    if (a_.pieces_on_link == 0 || copies == 0) return;
    const std::uint32_t last = atomicAdd(a_.link_tickets, copies) + copies;
    while (static_cast<int>(last - arrived_) > a_.pieces_on_link) arrived_ = arrivals();
  }
  __device__ void give_back(int copies) {
    if (a_.pieces_on_link == 0 || copies == 0) return;
    arrived_ = atomicAdd(a_.link_arrivals, copies) + copies;
  }

 private:
  __device__ std::uint32_t arrivals() const {
    return *reinterpret_cast<volatile std::uint32_t*>(a_.link_arrivals);
  }

  const FusedArguments& a_;
  std::uint32_t arrived_;  // as last seen
};

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
        epoch_(epoch_of(this_call(a))),
        tally_(tally(a, this_call(a))),
        link_(a) {}

  __device__ void run() {
    for (int index = 0;; ++index) {
      const Errand errand = errand_of(shared_.await_tile(index));
      if (errand.band < 0) return;
      // Only here, where nothing of an earlier tile is left to send, may a wait for peers begin;
      // nor is a part left to report, but of the same chunk, whose partials are here then.
      if (needs_partials(errand)) await_partials(errand.chunk);
      if (lane_ == 0) send_tile(errand, index);
      __syncwarp();
    }
  }

 private:
  // Where a tile's pieces of this side belong.
  struct Errand {
    int band, chunk;
    int row, col;
  };
  __device__ Errand errand_of(const int4& tile) const {
    return {tile.z, tile.w, tile.x, tile.y + side_ * kPieceCols};
  }
  __device__ int row_in_band(const Errand& to) const {
    return to.row - a_.order.rows_of(a_.order.band_tiles(to.band)).begin;
  }

  __device__ bool needs_partials(const Errand& to) const {
    return to.band == a_.rank && a_.world > 1;
  }

  // By the whole warp.
  __device__ void await_partials(int chunk) {
    if (chunk <= __shfl_sync(0xFFFFFFFFu, arrived_, 0)) return;
    if (lane_ < a_.world && lane_ != a_.rank) {
      await(a_, a_.scatter_flags[lane_] + chunk, epoch_, kScatterLeg, lane_, chunk);
    }
    __syncwarp();
    ptx::fence_async_global();
    arrived_ = chunk;
  }

  // Whether they are all here, by the first lane, which waits for nothing.
  __device__ bool have_partials(int chunk) {
    if (chunk <= arrived_) return true;
    for (int peer = first_peer(); peer < a_.world; peer = peer_after(peer)) {
      if (ptx::load_acquire_system(a_.scatter_flags[peer] + chunk) != epoch_) return false;
    }
    ptx::fence_async_global();
    arrived_ = chunk;
    return true;
  }

  __device__ void send_tile(const Errand& now, int index) {
    if (a_.events != nullptr) {
      atomicCAS(reinterpret_cast<unsigned long long*>(tally_.chunk_begin) +
                    now.band * a_.order.chunks + now.chunk,
                0ull, ptx::clock_ns());
    }
    alive_ = !failed(a_);
    hesitate();
    for (int group = 0; group < groups(a_); ++group) {
      if ((prepared_ >> group & 1) == 0) make_ready(now, group);
    }
    prepared_ = 0;
    const int copies = copies_to_peers(now);
    Errand next{.band = -1};
    for (int group = 0; group < groups(a_); ++group) {
      if (needs_partials(now)) bring_other_partials(now, group);
      await_written(group);
      link_.take(copies);
      if (!(fp8 && now.band == a_.rank)) {
        send_piece(now, group);
      } else if (side_ == 0) {
        send_codes(now, group);  // of the whole width; the right piece's buffer held partials only
      }
      // One piece at a time: with more on their way the operands' loads stand behind them.
      ptx::store_commit();
      ptx::store_wait_written();
      link_.give_back(copies);
      // The next tile's partials come while its products run.
      if (next.band < 0 && shared_.tile_known(index + 1)) {
        next = errand_of(shared_.tile(index + 1));
      }
      if (next.band >= 0 && (!needs_partials(next) || have_partials(next.chunk))) {
        make_ready(next, group);
        prepared_ |= 1u << group;
      }
    }
    ++parts_;
    if (a_.world == 1 || (next.band == now.band && next.chunk == now.chunk)) return;
    chunk_parts_done(a_, tally_, now.band, now.chunk, parts_, epoch_);
    parts_ = 0;
  }

  // The group's buffer, whose earlier content has left, is the tile's: empty, or with the first
  // peer's partial.
  __device__ void make_ready(const Errand& to, int group) {
    if (needs_partials(to)) return bring_partial(to, group, first_peer());
    ptx::barrier_arrive(shared_.buffer_ready(group, side_));
  }

  __device__ void bring_partial(const Errand& to, int group, int peer) {
    const std::uint32_t arrived = shared_.buffer_ready(group, side_);
    if (packs(a_, to.chunk, to.row + group * kGroupRows, to.col)) {
      const int place = packed_place(to, group);
      ptx::barrier_expect(arrived, kPieceBytes + kHeadsBytes);
      ptx::bulk_load(shared_.piece(group, side_),
                     a_.packed[peer] + static_cast<std::int64_t>(place) * kPieceBytes, kPieceBytes,
                     arrived);
      ptx::bulk_load(shared_.heads(group, side_),
                     a_.packing_heads[peer] + static_cast<std::int64_t>(place) * kHeadsBytes,
                     kHeadsBytes, arrived);
      return;
    }
    ptx::barrier_expect(arrived, kPieceBytes);
    ptx::tensor_load(shared_.piece(group, side_), &a_.received[peer], to.col,
                     row_in_band(to) + group * kGroupRows, arrived);
  }

  // Each once the group has read the one before.
  __device__ void bring_other_partials(const Errand& to, int group) {
    for (int peer = peer_after(first_peer()); peer < a_.world; peer = peer_after(peer)) {
      await_written(group);
      bring_partial(to, group, peer);
    }
  }

  __device__ void await_written(int group) {
    written_.wait(shared_.buffer_written(group, side_), group);
  }

  __device__ void send_piece(const Errand& to, int group) {
    const std::uint32_t from = shared_.piece(group, side_);
    const int below = group * kGroupRows;
    if (to.band == a_.rank) {
      for (int step = 0; step <= copies_to_peers(to); ++step) {  // this rank's own first
        ptx::tensor_store(&a_.output_at[(a_.rank + step) % a_.world], from, to.col, to.row + below);
      }
    } else if (!moves_bytes(to.chunk)) {
      return;
    } else if (packs(a_, to.chunk, to.row + below, to.col)) {
      send_packed(to, group);
    } else {
      ptx::tensor_store(&a_.partials_to[to.band], from, to.col, row_in_band(to) + below);
    }
  }

  // Which piece of its band it is, row by row.
  __device__ int packed_place(const Errand& to, int group) const {
    return (row_in_band(to) / kPieceRows + group) * (a_.order.cols / kPieceCols) +
           to.col / kPieceCols;
  }

  // What each warp packed in its quarter of the buffer, into its quarter at the peer.
  __device__ void send_packed(const Errand& to, int group) {
    const int place = packed_place(to, group);
    std::byte* at = a_.packed_at[to.band] + static_cast<std::int64_t>(place) * kPieceBytes;
    const std::uint32_t from = shared_.piece(group, side_), heads = shared_.heads(group, side_);
#pragma unroll 1
    for (int part = 0; part < kPieceParts; ++part) {
      const std::uint32_t head = ptx::load_shared_u32(heads + 4 * part);
      ptx::bulk_store(at + part * kPlainBytes, from + part * kPlainBytes,
                      (head & kHeadPlain) != 0 ? kPlainBytes : kPackedBytes);
    }
    ptx::bulk_store(a_.packing_heads_at[to.band] + static_cast<std::int64_t>(place) * kHeadsBytes,
                    heads, kHeadsBytes);
  }

  __device__ void send_codes(const Errand& to, int group) {
    const int row = to.row + group * kGroupRows;
    if (row >= a_.order.rows) return;
    if (a_.copy_engine) {  // its queues take the codes from the own window
      ptx::tensor_store(&a_.codes_at[a_.rank], shared_.piece(group, side_), to.col, row);
    }
    if (!moves_bytes(to.chunk)) return;
    for (int step = 1; step < a_.world; ++step) {
      const int rank = (a_.rank + step) % a_.world;
      if (!a_.copy_engine) {
        ptx::tensor_store(&a_.codes_at[rank], shared_.piece(group, side_), to.col, row);
      }
      if (to.col < a_.order.cols) {  // small, and not side by side: no work for the copy engine
        ptx::bulk_store(a_.code_scales_at[rank] + to.col / kDepth * a_.code_scale_rows + row,
                        shared_.code_scale(group), kCodeScaleBytes);
      }
    }
  }

  // A call that has failed writes nothing at its peers: they may still be in an earlier one.
  __device__ bool moves_bytes(int chunk) const {
    if (a_.drop_transfers || !alive_) return false;
    return !a_.skip_transfers || (a_.skip_only_chunk >= 0 && a_.skip_only_chunk != chunk);
  }
  // Of each piece of the tile, that this kernel stores.
  __device__ int copies_to_peers(const Errand& to) const {
    if (a_.copy_engine || !moves_bytes(to.chunk)) return 0;
    if (to.band != a_.rank) return 1;
    return fp8 && side_ != 0 ? 0 : a_.world - 1;
  }

  // A random time, for tests.
  __device__ void hesitate() const {
    if (a_.jitter_ns == 0) return;
    const std::uint64_t begin = ptx::clock_ns();
    // The cycle counter is each SM's own.
    const std::uint64_t mixed = static_cast<std::uint64_t>(clock64()) * 0x9E3779B97F4A7C15u >> 32;
    while (ptx::clock_ns() - begin < mixed % a_.jitter_ns) __nanosleep(100);
  }

  __device__ int first_peer() const { return a_.rank == 0 ? 1 : 0; }
  __device__ int peer_after(int peer) const { return peer + 1 == a_.rank ? peer + 2 : peer + 1; }

  const FusedArguments& a_;
  const Shared& shared_;
  const int side_, lane_;
  const std::uint32_t epoch_;
  const Tally& tally_;
  LinkPlaces link_;
  Phases written_;
  int arrived_ = -1;  // the last own chunk whose partials are here, as the first lane knows
  std::uint32_t prepared_ = 0;  // first lane: a bit for each group with its buffer for this tile
  std::uint32_t parts_ = 0;     // of a chunk, written since it was last told of
  bool alive_ = true;
};

}  // namespace
}  // namespace rowband::cuda
