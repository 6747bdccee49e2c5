// The fused kernel's shared memory: sizes, places, and the barriers that its warps meet at.
#pragma once

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

using DeviceTile = BasicTile<std::int32_t>;

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
constexpr int kScaleSlotBytes = 136;  // of 32 rows, and one for all columns; padded
constexpr int kWarpScaleBytes = kScaleSlots * kScaleSlotBytes;
constexpr int kTileSlots = 8;            // the loader is at most a stage more than these ahead
constexpr int kCodeScaleBytes = 64 * 4;  // fp8 wire: of a half's 64 rows

// How the shared memory is divided: `stages` of operands on their way in, and per multiplying group
// `buffers` pieces on their way out, two or all four of a tile.
template <int stages_, int buffers_>
struct Split {
  static constexpr int stages = stages_, buffers = buffers_, all_buffers = kGroups * buffers;
  static constexpr int code_scales = all_buffers / 2;  // one for each half that has buffers
  static constexpr int bytes = stages * kStageBytes + all_buffers * kPieceBytes +
                               kGroups * 4 * kWarpScaleBytes + code_scales * kCodeScaleBytes +
                               16 * kTileSlots + 8 * (2 * stages + 2 * all_buffers + 1);
  static_assert(stages < kTileSlots && bytes <= 227 * 1024);
};
using DeepIn = Split<4, 2>;        // hides the operands' way in
using WholeTileOut = Split<3, 4>;  // lets a group go on while its whole tile is on its way out

template <typename D>
struct Shared {
  // Shared-memory addresses.
  std::uint32_t stages, pieces, scales, code_scales, tiles, full, empty, ready, written, last_event;
  __device__ explicit Shared(std::uint32_t base)  // aligned to 1024
      : stages(base),
        pieces(stages + D::stages * kStageBytes),
        scales(pieces + D::all_buffers * kPieceBytes),
        code_scales(scales + kGroups * 4 * kWarpScaleBytes),
        tiles(code_scales + D::code_scales * kCodeScaleBytes),
        full(tiles + 16 * kTileSlots),
        empty(full + 8 * D::stages),
        ready(empty + 8 * D::stages),
        written(ready + 8 * D::all_buffers),
        last_event(written + 8 * D::all_buffers) {}

  __device__ void init_barriers() const {
    for (int stage = 0; stage < D::stages; ++stage) {
      ptx::barrier_init(full + 8 * stage, 1);
      ptx::barrier_init(empty + 8 * stage, 2 * kGroups);
    }
    for (int i = 0; i < D::all_buffers; ++i) {
      ptx::barrier_init(ready + 8 * i, 1);
      ptx::barrier_init(written + 8 * i, kGroupThreads / 32);
    }
    ptx::barrier_init_visible_to_cluster();
  }

  __device__ std::uint32_t piece(int group, int buffer) const {
    return pieces + (group * D::buffers + buffer) * kPieceBytes;
  }
  // The sender's word that a piece buffer is free, or holds a peer's partial.
  __device__ std::uint32_t buffer_ready(int group, int buffer) const {
    return ready + (group * D::buffers + buffer) * 8;
  }
  // The group's warps' word that they have read the partial, or written their piece.
  __device__ std::uint32_t buffer_written(int group, int buffer) const {
    return written + (group * D::buffers + buffer) * 8;
  }
  __device__ std::uint32_t code_scale(int group, int half) const {
    constexpr int halves = D::buffers / 2;
    return code_scales + (group * halves + half % halves) * kCodeScaleBytes;
  }
  __device__ std::uint32_t tile(int index) const { return tiles + index % kTileSlots * 16; }
};

template <int stages>
struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Phases of a group's barriers, one bit a buffer. Each side passes every phase of every buffer.
struct Phases {
  std::uint32_t parity = 0;
  __device__ void wait(std::uint32_t barrier, int buffer) {
    ptx::barrier_wait(barrier, parity >> buffer & 1);
    parity ^= 1u << buffer;
  }
};

__device__ int clusters() { return static_cast<int>(gridDim.x / 2); }
__device__ DeviceTileWalk first_tile(const FusedArguments& a) {
  return {a.order, a.rank, static_cast<int>(blockIdx.x / 2)};
}

}  // namespace
}  // namespace rowband::cuda
