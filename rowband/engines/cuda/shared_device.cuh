// The fused kernel's shared memory: sizes, places, and the barriers that its warps meet at.
#pragma once

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

using DeviceTile = BasicTile<std::int32_t>;

constexpr int kStages = 4;
constexpr int kRowsBytes = kTileRows * kDepth;
constexpr int kColsBytes = kBlockCols * kDepth;
constexpr int kStageBytes = kRowsBytes + kColsBytes;
constexpr int kPieceCols = 64;  // a piece: 64 rows of 128 bytes
constexpr int kPieceBytes = 64 * kPieceCols * 2;
constexpr int kPiecesPerTile = 4;  // per multiplying group: two halves of rows, two of columns
constexpr int kGroups = 2;
constexpr int kGroupThreads = 128;
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kScaleSlots = 2;        // per multiplying warp, of one depth block each
constexpr int kScaleSlotBytes = 144;  // of 32 rows, and one for all columns; padded
constexpr int kTileSlots = 8;         // the loader is at most kStages + 1 tiles ahead
constexpr int kWarpScaleBytes = kScaleSlots * kScaleSlotBytes;
constexpr int kCodeScaleBytes = 64 * 4;  // fp8 wire: of a half's 64 rows, per multiplying group
constexpr int kSharedBytes = kStages * kStageBytes + kGroups * 2 * kPieceBytes +
                             kGroups * 4 * kWarpScaleBytes + 16 * kTileSlots + 16 * kStages +
                             8 * kGroups * 2 + kGroups * kCodeScaleBytes + 8;
static_assert(kSharedBytes <= 227 * 1024);
constexpr int kSenderThreads = kGroupThreads + 32;  // of a hand-over barrier

struct Shared {
  // Shared-memory addresses.
  std::uint32_t stages, pieces, scales, code_scales, tiles, full, empty, partials, last_event;
  __device__ explicit Shared(std::uint32_t base)  // aligned to 1024
      : stages(base),
        pieces(stages + kStages * kStageBytes),
        scales(pieces + kGroups * 2 * kPieceBytes),
        code_scales(scales + kGroups * 4 * kWarpScaleBytes),
        tiles(code_scales + kGroups * kCodeScaleBytes),
        full(tiles + 16 * kTileSlots),
        empty(full + 8 * kStages),
        partials(empty + 8 * kStages),
        last_event(partials + 8 * kGroups * 2) {}
  __device__ std::uint32_t piece(int group, int buffer) const {
    return pieces + (group * 2 + buffer) * kPieceBytes;
  }
  // The barrier of a peer's partial on its way into that piece buffer.
  __device__ std::uint32_t partial(int group, int buffer) const {
    return partials + (group * 2 + buffer) * 8;
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

// Hand-over barriers between a multiplying group and its sender, per piece buffer. Barrier 0 is
// __syncthreads.
__device__ int piece_full(int group, int buffer) { return 1 + group * 4 + buffer; }
__device__ int piece_empty(int group, int buffer) { return 3 + group * 4 + buffer; }

__device__ int clusters() { return static_cast<int>(gridDim.x / 2); }
__device__ DeviceTileWalk first_tile(const FusedArguments& a) {
  return {a.order, a.rank, static_cast<int>(blockIdx.x / 2)};
}

}  // namespace
}  // namespace rowband::cuda
