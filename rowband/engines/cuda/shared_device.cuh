// The fused kernel's shared memory: sizes, places, and the barriers that its warps meet at.
#pragma once

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

using DeviceTile = BasicTile<std::int32_t>;

constexpr int kStages = 3;
constexpr int kRowsBytes = kTileRows * kDepth;
constexpr int kColsBytes = kBlockCols * kDepth;
constexpr int kStageBytes = kRowsBytes + kColsBytes;
constexpr int kStageScales = kTileRows + 1;  // of the rows, then that of all the block's columns
constexpr int kStageScaleBytes = (kStageScales * 4 + 15) / 16 * 16;
constexpr int kPieceCols = 64;  // a piece: 64 rows of 128 bytes
constexpr int kPieceBytes = 64 * kPieceCols * 2;
constexpr int kPiecesPerTile = 4;  // per multiplying group: two halves of rows, two of columns
constexpr int kGroups = 2;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kTileSlots = 8;            // the loader is at most kStages + 1 tiles ahead
constexpr int kCodeScaleBytes = 64 * 4;  // fp8 wire: of a half's 64 rows

constexpr int kAllBuffers = kGroups * kPiecesPerTile;  // a whole tile may be on its way out
constexpr int kHalves = 2;
constexpr int kSharedBytes = kStages * kStageBytes + kAllBuffers * kPieceBytes +
                             kStages * kStageScaleBytes + kGroups * kHalves * kCodeScaleBytes +
                             16 * kTileSlots + 8 * (2 * kStages + 2 * kAllBuffers + 1);
static_assert(kStages < kTileSlots && kSharedBytes <= 227 * 1024);

struct Shared {
  // Shared-memory addresses.
  std::uint32_t stages, pieces, scales, code_scales, tiles, full, empty, ready, written, last_event;
  __device__ explicit Shared(std::uint32_t base)  // aligned to 1024
      : stages(base),
        pieces(stages + kStages * kStageBytes),
        scales(pieces + kAllBuffers * kPieceBytes),
        code_scales(scales + kStages * kStageScaleBytes),
        tiles(code_scales + kGroups * kHalves * kCodeScaleBytes),
        full(tiles + 16 * kTileSlots),
        empty(full + 8 * kStages),
        ready(empty + 8 * kStages),
        written(ready + 8 * kAllBuffers),
        last_event(written + 8 * kAllBuffers) {}

  __device__ void init_barriers() const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(full + 8 * stage, 1 + 32);  // the tensor loads, each lane's scales
      ptx::barrier_init(empty + 8 * stage, 2 * kGroups);
    }
    for (int i = 0; i < kAllBuffers; ++i) {
      ptx::barrier_init(ready + 8 * i, 1);
      ptx::barrier_init(written + 8 * i, kGroupThreads / 32);
    }
    ptx::barrier_init_visible_to_cluster();
  }

  // A group's buffer for piece 0, 1, 2 or 3 of its tiles.
  __device__ std::uint32_t piece(int group, int index) const {
    return pieces + (group * kPiecesPerTile + index) * kPieceBytes;
  }
  // The sender's word that the buffer is free, or holds a peer's partial.
  __device__ std::uint32_t buffer_ready(int group, int index) const {
    return ready + (group * kPiecesPerTile + index) * 8;
  }
  // The group's warps' word that they have read the partial, or written their piece.
  __device__ std::uint32_t buffer_written(int group, int index) const {
    return written + (group * kPiecesPerTile + index) * 8;
  }
  __device__ std::uint32_t code_scale(int group, int half) const {
    return code_scales + (group * kHalves + half) * kCodeScaleBytes;
  }
  __device__ std::uint32_t tile(int index) const { return tiles + index % kTileSlots * 16; }
};

struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Phases of a group's barriers, one bit a piece. Each side passes every phase of every buffer.
struct Phases {
  std::uint32_t parity = 0;
  __device__ void wait(std::uint32_t barrier, int piece) {
    ptx::barrier_wait(barrier, parity >> piece & 1);
    parity ^= 1u << piece;
  }
};

__device__ int clusters() { return static_cast<int>(gridDim.x / 2); }
__device__ DeviceTileWalk first_tile(const FusedArguments& a) {
  return {a.order, a.rank, static_cast<int>(blockIdx.x / 2)};
}

}  // namespace
}  // namespace rowband::cuda
