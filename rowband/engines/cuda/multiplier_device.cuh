// What a multiplying group does with a tile: the products, the scales, the reduce, the hand-over.
#pragma once

#include "rowband/engines/cuda/protocol_device.cuh"
#include "rowband/engines/cuda/quantize_device.cuh"
#include "rowband/engines/cuda/shared_device.cuh"

namespace rowband::cuda {
namespace {

template <bool fp8>
class Multiplier {
 public:
  __device__ Multiplier(const FusedArguments& a, const Shared& shared, int group)
      : a_(a),
        shared_(shared),
        group_(group),
        thread_(threadIdx.x % kGroupThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        depth_blocks_(static_cast<int>(a.depth / kDepth)),
        first_row_(group * 128 + warp_ * 16 + lane_ / 4),
        rows_descriptor_(ptx::matrix_descriptor(shared.stages + group * 128 * kDepth)),
        cols_descriptor_(ptx::matrix_descriptor(shared.stages + kRowsBytes)) {}

  __device__ __forceinline__ void run() {
    const int first = static_cast<int>(blockIdx.x / 2);
    const int tiles = (a_.order.tiles() - first + clusters() - 1) / clusters();
    if (tiles > 0) await_stage();
    record_work(DeviceEvent::kStart, 0);
    for (int i = 0; i < tiles; ++i) {
      multiply();
      record_work(DeviceEvent::kMultiply, i);
      hand_over_tile(ptx::load_shared(shared_.tile(i)));
      record_work(DeviceEvent::kHandOver, i);
      if (i + 1 < tiles) await_stage();
    }
  }

 private:
  // What began where the last event of this thread, which speaks for the cluster, ended.
  __device__ __forceinline__ void record_work(DeviceEvent::Kind kind, int index) const {
    if (a_.events == nullptr || ptx::block_of_cluster() != 0 || threadIdx.x != 0) return;
    const std::uint64_t end = ptx::clock_ns(), begin = ptx::load_shared_word(shared_.last_event);
    ptx::store_shared_word(shared_.last_event, end);
    if (kind == DeviceEvent::kStart) return;
    const int4 tile = ptx::load_shared(shared_.tile(index));
    record(a_,
           {begin, end, kind, static_cast<int>(blockIdx.x / 2), tile.z, tile.w, tile.x, tile.y});
  }

  __device__ __forceinline__ void hand_over_tile(const int4& tile) {
    const bool own = tile.z == a_.rank;
    if (fp8 && own) {
      hand_over_codes(0, tile.x + group_ * 128, tile.y);
      hand_over_codes(1, tile.x + group_ * 128, tile.y);
      return;
    }
#pragma unroll
    for (int piece = 0; piece < kPiecesPerTile; ++piece) hand_over(piece, own && !fp8, tile.y);
  }

  __device__ __forceinline__ void await_stage() const {
    ptx::barrier_wait(shared_.full + 8 * ring_.stage, ring_.parity);
  }

  // sums_ = the group's 128 x 128 of x * w^T at the tile whose first stage is there.
  __device__ __forceinline__ void multiply() {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums_[0][i] = sums_[1][i] = 0;
    for (int k = 0; k < depth_blocks_; ++k) multiply_block(k + 1 < depth_blocks_);
  }

  // Adds the block in the stage, which is there, to the sums; the next, if there are more, comes
  // meanwhile.
  __device__ __forceinline__ void multiply_block(bool more) {
    const std::uint32_t stage = ring_.stage;
    const std::uint64_t cols = cols_descriptor_ + stage * (kStageBytes / 16);
    const std::uint64_t rows = rows_descriptor_ + stage * (kStageBytes / 16);
    float block[64], scale[4];
    start_product(block, rows, cols);
    load_scales(scale, stage);
    ptx::wgmma_wait();
    add_product(0, block, scale[0], scale[1]);
    start_product(block, rows + 64 * kDepth / 16, cols);
    ring_.advance();
    if (more) await_stage();
    ptx::wgmma_wait();
    // Both blocks' loaders write this stage, so both must know that it has been read.
    if (thread_ < 2) ptx::barrier_arrive_at(shared_.empty + 8 * stage, thread_);
    add_product(1, block, scale[2], scale[3]);
  }

  // scale[i] = that of the thread's row i and the columns.
  __device__ __forceinline__ void load_scales(float (&scale)[4], std::uint32_t stage) const {
    const std::uint32_t from = shared_.scales + stage * kStageScaleBytes;
    const float cols = ptx::load_shared_float(from + kTileRows * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float rows = ptx::load_shared_float(from + (first_row_ + i / 2 * 64 + i % 2 * 8) * 4);
      scale[i] = cols * rows;
    }
  }

  __device__ __forceinline__ static void start_product(float (&block)[64], std::uint64_t rows,
                                                       std::uint64_t cols) {
    ptx::pin(block);
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {  // 32 deep, 32 bytes: 2 units of a descriptor
      ptx::wgmma_m64n128k32(block, rows + 2 * step, cols + 2 * step, step);
    }
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void add_product(int half, float (&block)[64], float upper,
                                              float lower) {
    ptx::pin(block);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      sums_[half][i] = fmaf(block[i], i / 2 % 2 == 0 ? upper : lower, sums_[half][i]);
    }
  }

  // The thread's pairs of a piece lie at columns 8i + 2 * (lane % 4) of its row, and 8 rows below.
  struct Piece {
    std::uint32_t pairs[8][2];
  };

  // Where the thread's row of matrices 2i, 2i + 1 lies in a piece buffer: ldmatrix and stmatrix
  // order, 128-byte swizzle.
  __device__ __forceinline__ std::uint32_t matrices(int buffer, int i) const {
    const int row = warp_ * 16 + lane_ % 16;
    return shared_.piece(group_, buffer) + row * 128 + ((i + lane_ / 16) ^ (row % 8)) * 16;
  }

  // The own partial, rounded.
  __device__ __forceinline__ Piece own_partial(int half, int right) const {
    Piece own;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* sums = sums_[half] + 4 * (right * 8 + i);
      own.pairs[i][0] = round(sums[0], sums[1]);
      own.pairs[i][1] = round(sums[2], sums[3]);
    }
    return own;
  }

  __device__ int last_peer() const { return a_.rank == a_.world - 1 ? a_.world - 2 : a_.world - 1; }

  // Until the sender says that the buffer is free, or holds a peer's partial.
  __device__ __forceinline__ void await_buffer(int buffer) {
    ready_.wait(shared_.buffer_ready(group_, buffer), buffer);
  }

  // This warp has read the partial in the buffer, or written its part of the piece.
  __device__ __forceinline__ void tell_sender(int buffer) const {
    ptx::fence_shared_to_async();
    __syncwarp();
    if (lane_ == 0) ptx::barrier_arrive(shared_.buffer_written(group_, buffer));
  }

  // The next of the peers' partials that the sender brings into the buffer.
  __device__ __forceinline__ Piece arrived_partial(int buffer) {
    await_buffer(buffer);
    Piece piece;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      ptx::load_matrices(matrices(buffer, i), piece.pairs[i][0], piece.pairs[i][1],
                         piece.pairs[i + 1][0], piece.pairs[i + 1][1]);
    }
    return piece;
  }

  // Adds every rank's partial in rank order, then the bias, and rounds once. The sender brings the
  // peers' partials into the buffer one after the other.
  __device__ __forceinline__ void reduce(Piece& piece, int buffer, int col) {
    float2 sums[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i][0] = sums[i][1] = {-0.0f, -0.0f};  // -0 + x is x, even -0
#pragma unroll 1
    for (int rank = 0; rank < a_.world; ++rank) {
      Piece term = piece;
      if (rank != a_.rank) {
        term = arrived_partial(buffer);
        if (rank != last_peer()) tell_sender(buffer);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        add(sums[i][0], term.pairs[i][0]);
        add(sums[i][1], term.pairs[i][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (a_.bias != nullptr && col + 8 * i < a_.order.cols) {
        const auto bias = *reinterpret_cast<const std::uint32_t*>(a_.bias + col + 8 * i);
        add(sums[i][0], bias);
        add(sums[i][1], bias);
      }
      piece.pairs[i][0] = round(sums[i][0].x, sums[i][0].y);
      piece.pairs[i][1] = round(sums[i][1].x, sums[i][1].y);
    }
  }

  __device__ static __forceinline__ void add(float2& sum, std::uint32_t pair) {
    add(sum.x, sum.y, pair);
  }

  __device__ static __forceinline__ std::uint32_t round(float left, float right) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(left, right);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }

  // Piece `index` of the tile into its buffer, for the sender.
  __device__ __forceinline__ void hand_over(int index, bool own, int tile_col) {
    const int half = index / 2, right = index % 2;
    Piece piece = own_partial(half, right);
    const bool partials = own && a_.world > 1;
    if (!partials) await_buffer(index);
    if (partials || (own && a_.bias != nullptr)) {
      reduce(piece, index, tile_col + right * kPieceCols + lane_ % 4 * 2);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      ptx::store_matrices(matrices(index, i), piece.pairs[i][0], piece.pairs[i][1],
                          piece.pairs[i + 1][0], piece.pairs[i + 1][1]);
    }
    tell_sender(index);
  }

  // fp8 wire, own band: half `half` of the tile at (row, col) is reduced, encoded for the sender
  // into the buffer of its left piece, and what the codes say is stored to the output here.
  __device__ __forceinline__ void hand_over_codes(int half, int row, int col) {
    reduce_half(half, col);
    const int buffer = 2 * half;
    float* values = sums_[half];
    float amax[2] = {0, 0};  // of the thread's row and the one 8 below
#pragma unroll
    for (int below = 0; below < 2; ++below) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const float magnitude = fabsf(values[4 * (i / 2) + 2 * below + i % 2]);
        if (magnitude > amax[below]) amax[below] = magnitude;  // false for NaN
      }
      amax[below] = fmaxf(amax[below], __shfl_xor_sync(0xFFFFFFFFu, amax[below], 1));
      amax[below] = fmaxf(amax[below], __shfl_xor_sync(0xFFFFFFFFu, amax[below], 2));
    }
    const float scale[2] = {block_scale(amax[0], false), block_scale(amax[1], false)};
    const Division by[2] = {Division(scale[0]), Division(scale[1])};
    const int first = row + half * 64 + warp_ * 16 + lane_ / 4;
    Bf16* out = a_.output + static_cast<std::int64_t>(first) * a_.order.cols + col + lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      std::uint32_t codes[2];  // two of column group i, two of group i + 1
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        codes[below] = 0;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float* pair = values + 4 * (i + j) + 2 * below;
          const std::uint32_t two = e4m3_codes(pair[0], pair[1], by[below]);
          if (first + 8 * below < a_.order.rows && col + 8 * (i + j) < a_.order.cols) {
            *reinterpret_cast<std::uint32_t*>(out + 8 * below * a_.order.cols + 8 * (i + j)) =
                widen_codes(two, scale[below]);
          }
          codes[below] |= two << (16 * j);
        }
        // Four lanes' bytes into the order of the columns: the lower two lanes take group i.
        const int from = lane_ & ~3 | lane_ * 2 & 3;
        const std::uint32_t left = __shfl_sync(0xFFFFFFFFu, codes[below], from);
        const std::uint32_t right = __shfl_sync(0xFFFFFFFFu, codes[below], from + 1);
        codes[below] = __byte_perm(left, right, lane_ & 2 ? 0x7632 : 0x5410);
      }
      // Matrices of 16 columns: the row and the one 8 below. Two calls fill four.
      store_codes(buffer, i / 2, codes);
    }
    if (lane_ % 4 == 0) {
      const std::uint32_t to = shared_.code_scale(group_, half);
      ptx::store_shared_float(to + (warp_ * 16 + lane_ / 4) * 4, scale[0]);
      ptx::store_shared_float(to + (warp_ * 16 + lane_ / 4 + 8) * 4, scale[1]);
    }
    tell_sender(buffer);
  }

  // Column group `sixteen` of the codes' rows.
  __device__ __forceinline__ void store_codes(int buffer, int sixteen,
                                              const std::uint32_t (&codes)[2]) const {
    const int row = warp_ * 16 + lane_ % 16;
    ptx::store_two_matrices(shared_.piece(group_, buffer) + row * 128 + (sixteen ^ (row % 8)) * 16,
                            codes[0], codes[1]);
  }

  // sums_[half] = the finished values, which are bf16.
  __device__ __forceinline__ void reduce_half(int half, int col) {
#pragma unroll
    for (int right = 0; right < 2; ++right) {
      float* sums = sums_[half] + 32 * right;
      const Piece own = own_partial(half, right);
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[i] = -0.0f;
#pragma unroll 1
      for (int rank = 0; rank < a_.world; ++rank) {
        Piece term = own;
        if (rank != a_.rank) {
          const int buffer = 2 * half + right;
          term = arrived_partial(buffer);
          // After the last, the left piece's buffer takes the codes.
          if (rank != last_peer() || right == 1) tell_sender(buffer);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          add(sums[4 * i], sums[4 * i + 1], term.pairs[i][0]);
          add(sums[4 * i + 2], sums[4 * i + 3], term.pairs[i][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float* four = sums + 4 * i;
        const int c = col + right * kPieceCols + 8 * i + lane_ % 4 * 2;
        if (a_.bias != nullptr && c < a_.order.cols) {
          const auto bias = *reinterpret_cast<const std::uint32_t*>(a_.bias + c);
          add(four[0], four[1], bias);
          add(four[2], four[3], bias);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = __bfloat162float(__float2bfloat16_rn(four[j]));
      }
    }
  }

  __device__ static __forceinline__ void add(float& left, float& right, std::uint32_t pair) {
    left += __uint_as_float(pair << 16);
    right += __uint_as_float(pair & 0xFFFF0000u);
  }

  const FusedArguments& a_;
  const Shared& shared_;
  const int group_, thread_, warp_, lane_;
  const int depth_blocks_;
  const int first_row_;                                    // the thread's, of four
  const std::uint64_t rows_descriptor_, cols_descriptor_;  // of the first stage
  Ring ring_;
  Phases ready_;
  float sums_[2][64];
};

}  // namespace
}  // namespace rowband::cuda
