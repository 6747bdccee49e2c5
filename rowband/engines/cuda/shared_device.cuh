// The fused kernel's shared memory: sizes, places, and the barriers that its warps meet at.
#pragma once

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/packed_device.cuh"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

// The lower the tile, the more stages: with few bytes in each the loads' latency asks for them.
constexpr int kMostStages = 6;
__host__ __device__ constexpr int stages_of(int groups) { return kMostStages + 1 - groups; }
constexpr int kColsBytes = kBlockCols * kDepth;
__host__ __device__ constexpr int stage_bytes_of(int groups) {
  return groups * kGroupRows * kDepth + kColsBytes;
}
constexpr int kStagesBytes = stages_of(kGroups) * stage_bytes_of(kGroups);
static_assert(stages_of(1) * stage_bytes_of(1) <= kStagesBytes &&
              stages_of(2) * stage_bytes_of(2) <= kStagesBytes && kGroups == 3);
constexpr int kStageScales = kTileRows + 1;  // of the rows, then that of all the block's columns
constexpr int kStageScaleBytes = (kStageScales * 4 + 15) / 16 * 16;

constexpr int kGroupThreads = 128;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kSenders = kBlockCols / kPieceCols;  // one for the left pieces, one for the right
constexpr int kPieceBytes = kPieceRows * kPieceCols * 2;
constexpr int kPieces = kGroups * kSenders;  // a whole tile may be on its way out
// From the tile that a sender is still to read of to the one that is told: the sender one behind
// the groups, they up to kMostStages (at one stage a tile) behind the loaders, these one behind
// what is told; and one for lanes of a sender that read later than its first.
constexpr int kTileSlots = 16;
constexpr int kCodeScaleBytes = kGroupRows * 4;  // fp8 wire: of a group's rows
static_assert(kGroupRows == kPieceRows && kPieceCols * 2 == 128 &&
              kPieceParts * 32 == kGroupThreads && kPieceParts * kPlainBytes == kPieceBytes);

constexpr int kSharedBytes = kStagesBytes + kPieces * (kPieceBytes + kHeadsBytes) +
                             kMostStages * kStageScaleBytes + kGroups * kCodeScaleBytes +
                             (16 + 8) * kTileSlots + 8 * (2 * kMostStages + 2 * kPieces + 1);
static_assert(kMostStages + 4 <= kTileSlots && kSharedBytes <= 227 * 1024);

struct Shared {
  // Shared-memory addresses.
  std::uint32_t stages, pieces, scales, code_scales, packing_heads, tiles, known, full, empty,
      ready, written, last_event;
  int stage_count, stage_bytes, rows_bytes;  // of this call's tiles; in a stage the rows come first
  __device__ Shared(std::uint32_t base, int groups)  // aligned to 1024
      : stages(base),
        pieces(stages + kStagesBytes),
        scales(pieces + kPieces * kPieceBytes),
        code_scales(scales + kMostStages * kStageScaleBytes),
        packing_heads(code_scales + kGroups * kCodeScaleBytes),
        tiles(packing_heads + kPieces * kHeadsBytes),
        known(tiles + 16 * kTileSlots),
        full(known + 8 * kTileSlots),
        empty(full + 8 * kMostStages),
        ready(empty + 8 * kMostStages),
        written(ready + 8 * kPieces),
        last_event(written + 8 * kPieces),
        stage_count(stages_of(groups)),
        stage_bytes(stage_bytes_of(groups)),
        rows_bytes(stage_bytes - kColsBytes) {}

  // `groups` multiply.
  __device__ void init_barriers(int groups) const {
    for (int stage = 0; stage < stage_count; ++stage) {
      ptx::barrier_init(full + 8 * stage, 1 + 32);  // the tensor loads, each lane's scales
      ptx::barrier_init(empty + 8 * stage, 2 * groups);
    }
    for (int i = 0; i < kPieces; ++i) {
      ptx::barrier_init(ready + 8 * i, 1);
      ptx::barrier_init(written + 8 * i, kGroupThreads / 32);
    }
    for (int i = 0; i < kTileSlots; ++i) ptx::barrier_init(known + 8 * i, 1);
    ptx::barrier_init_visible_to_cluster();
  }

  // A group's buffer for its tiles' left (0) or right (1) piece.
  __device__ std::uint32_t piece(int group, int side) const {
    return pieces + (group * kSenders + side) * kPieceBytes;
  }
  // What tells the parts of a packed piece in that buffer.
  __device__ std::uint32_t heads(int group, int side) const {
    return packing_heads + (group * kSenders + side) * kHeadsBytes;
  }
  // The sender's word that the buffer is free, or holds a peer's partial.
  __device__ std::uint32_t buffer_ready(int group, int side) const {
    return ready + (group * kSenders + side) * 8;
  }
  // The group's warps' word that they have read the partial, or written their piece.
  __device__ std::uint32_t buffer_written(int group, int side) const {
    return written + (group * kSenders + side) * 8;
  }
  __device__ std::uint32_t code_scale(int group) const {
    return code_scales + group * kCodeScaleBytes;
  }

  // The index-th tile of this cluster: first row, first column of this block, band, chunk; band -1
  // after the last. By the first block's loader, to both blocks, whose loaders expect it.
  __device__ void tell_tile(int index, const int4& tile) const {
    for (int block = 0; block < 2; ++block) {
      ptx::store_shared_at(tile_slot(index), block,
                           {tile.x, tile.y + block * kBlockCols, tile.z, tile.w},
                           tile_barrier(index));
    }
  }
  __device__ void expect_tile(int index) const { ptx::barrier_expect(tile_barrier(index), 16); }
  __device__ bool tile_known(int index) const {
    return ptx::barrier_passed(tile_barrier(index), index / kTileSlots & 1);
  }
  __device__ int4 await_tile(int index) const {
    ptx::barrier_wait(tile_barrier(index), index / kTileSlots & 1);
    return tile(index);
  }
  // Once it is known.
  __device__ int4 tile(int index) const {
    const uint4 v = ptx::load_shared(tile_slot(index));
    return {static_cast<int>(v.x), static_cast<int>(v.y), static_cast<int>(v.z),
            static_cast<int>(v.w)};
  }

 private:
  __device__ std::uint32_t tile_slot(int index) const { return tiles + index % kTileSlots * 16; }
  __device__ std::uint32_t tile_barrier(int index) const { return known + index % kTileSlots * 8; }
};

struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Phases of barriers, one bit for each. Each side passes every phase of every buffer.
struct Phases {
  std::uint32_t parity = 0;
  __device__ void wait(std::uint32_t barrier, int bit) {
    ptx::barrier_wait(barrier, parity >> bit & 1);
    parity ^= 1u << bit;
  }
};

// That multiply in this call; the others have no part of its tiles.
__device__ int groups(const FusedArguments& a) { return a.order.tile_rows / kGroupRows; }
// Whether the partials of the piece that begins here in the output travel packed: whole ones do.
__device__ bool packs(const FusedArguments& a, int chunk, int row, int col) {
  return chunk < a.packed_chunks && row + kPieceRows <= a.order.rows && col < a.order.cols;
}
__device__ int clusters() { return static_cast<int>(gridDim.x / 2); }

}  // namespace
}  // namespace rowband::cuda
