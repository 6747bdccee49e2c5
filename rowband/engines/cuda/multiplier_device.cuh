// What a multiplying group does with a tile: the products, the scales, the reduce, the hand-over.
#pragma once

#include "rowband/engines/cuda/bf16_device.cuh"
#include "rowband/engines/cuda/packed_device.cuh"
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
        first_row_(group * kGroupRows + warp_ * 16 + lane_ / 4),
        rows_descriptor_(ptx::matrix_descriptor(shared.stages + group * kGroupRows * kDepth)),
        cols_descriptor_(ptx::matrix_descriptor(shared.stages + shared.rows_bytes)),
        row_scales_(__shfl_sync(0xFFFFFFFFu, shared.scales + first_row_ * 4, lane_)),
        empty_for_(thread_ < 2 ? thread_ : -1) {
    // Not to be computed anew for every product, least of all from threadIdx, which is slow to
    // read. row_scales_ comes from a shuffle for that, without which the assembler does so all the
    // same.
    asm volatile("" : "+r"(empty_for_));
  }

  __device__ __forceinline__ void run() {
    await_stage();
    record_work(DeviceEvent::kStart, 0);
    for (int i = 0; shared_.tile(i).z >= 0; ++i) {
      multiply();
      record_work(DeviceEvent::kMultiply, i);
      hand_over_tile(shared_.tile(i));
      record_work(DeviceEvent::kHandOver, i);
      await_stage();
    }
  }

 private:
  // What began where the last event of this thread, which speaks for the cluster, ended.
  __device__ __forceinline__ void record_work(DeviceEvent::Kind kind, int index) const {
    if (a_.events == nullptr || ptx::block_of_cluster() != 0 || threadIdx.x != 0) return;
    const std::uint64_t end = ptx::clock_ns(), begin = ptx::load_shared_word(shared_.last_event);
    ptx::store_shared_word(shared_.last_event, end);
    if (kind == DeviceEvent::kStart) return;
    const int4 tile = shared_.tile(index);
    record(a_,
           {begin, end, kind, static_cast<int>(blockIdx.x / 2), tile.z, tile.w, tile.x, tile.y});
  }

  __device__ __forceinline__ void hand_over_tile(const int4& tile) {
    const bool own = tile.z == a_.rank;
#pragma unroll
    for (int side = 0; side < kSenders; ++side) {
      packs_[side] = packs(a_, tile.w, tile.x + group_ * kGroupRows, tile.y + side * kPieceCols);
    }
    if (fp8 && own) return hand_over_codes(tile.x + first_row_, tile.y);
#pragma unroll
    for (int side = 0; side < kSenders; ++side) hand_over(side, own, tile.y + side * kPieceCols);
  }

  __device__ __forceinline__ void await_stage() const {
    ptx::barrier_wait(shared_.full + 8 * ring_.stage, ring_.parity);
  }

  // sums_ = the group's 64 x 128 of x * w^T at the tile whose first stage is there.
  __device__ __forceinline__ void multiply() {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums_[i] = 0;
    for (int k = 0; k < depth_blocks_; ++k) multiply_block(k + 1 < depth_blocks_);
  }

  // Adds the block in the stage, which is there, to the sums; the next, if there are more, comes
  // meanwhile.
  __device__ __forceinline__ void multiply_block(bool more) {
    const std::uint32_t stage = ring_.stage;
    const Scales scales = load_scales(stage);
    const std::uint32_t stage_units = static_cast<std::uint32_t>(shared_.stage_bytes) / 16;
    float block[64];
    start_product(block, rows_descriptor_ + stage * stage_units,
                  cols_descriptor_ + stage * stage_units);
    const float upper = scales.cols * scales.upper, lower = scales.cols * scales.lower;
    ring_.advance(shared_.stage_count);
    if (more) await_stage();
    ptx::wgmma_wait();
    // Both blocks' loaders write this stage, so both must know that it has been read.
    if (empty_for_ >= 0) ptx::barrier_arrive_at(shared_.empty + 8 * stage, empty_for_);
    add_product(block, upper, lower);
  }

  // Of the columns, the thread's row and the one 8 below. Before the warp starts the product, whose
  // end lets the loaders write the stage anew.
  struct Scales {
    float cols, upper, lower;
  };
  __device__ __forceinline__ Scales load_scales(std::uint32_t stage) const {
    return {ptx::load_shared_float(shared_.scales + stage * kStageScaleBytes + kTileRows * 4),
            ptx::load_shared_float(row_scales_ + stage * kStageScaleBytes),
            ptx::load_shared_float(row_scales_ + stage * kStageScaleBytes + 8 * 4)};
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

  __device__ __forceinline__ void add_product(float (&block)[64], float upper, float lower) {
    ptx::pin(block);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      sums_[i] = fmaf(block[i], i / 2 % 2 == 0 ? upper : lower, sums_[i]);
    }
  }

  // The thread's pairs of a piece lie at columns 8i + 2 * (lane % 4) of its row, and 8 rows below.
  struct Piece {
    std::uint32_t pairs[8][2];
    using All = std::uint32_t[kPackedPairs];  // in a row
    __device__ __forceinline__ All& all() {
      static_assert(sizeof(All) == sizeof pairs);
      return reinterpret_cast<All&>(pairs);
    }
  };

  // Where the thread's row of matrices 2i, 2i + 1 lies in a piece buffer: ldmatrix and stmatrix
  // order, 128-byte swizzle.
  __device__ __forceinline__ std::uint32_t matrices(int side, int i) const {
    const int row = warp_ * 16 + lane_ % 16;
    return shared_.piece(group_, side) + row * 128 + ((i + lane_ / 16) ^ (row % 8)) * 16;
  }

  // The own partial, rounded.
  __device__ __forceinline__ Piece own_partial(int side) const {
    Piece own;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* sums = sums_ + 4 * (side * 8 + i);
      own.pairs[i][0] = round(sums[0], sums[1]);
      own.pairs[i][1] = round(sums[2], sums[3]);
    }
    return own;
  }

  __device__ int last_peer() const { return a_.rank == a_.world - 1 ? a_.world - 2 : a_.world - 1; }

  // Until the sender says that the buffer is free, or holds a peer's partial.
  __device__ __forceinline__ void await_buffer(int side) {
    ready_.wait(shared_.buffer_ready(group_, side), side);
  }

  // This warp has read the partial in the buffer, or written its part of the piece.
  __device__ __forceinline__ void tell_sender(int side) const {
    ptx::fence_shared_to_async();
    __syncwarp();
    if (lane_ == 0) ptx::barrier_arrive(shared_.buffer_written(group_, side));
  }

  // The next of the peers' partials that the sender brings into the buffer.
  __device__ __forceinline__ Piece arrived_partial(int side) {
    await_buffer(side);
    Piece piece;
    if (packs_[side]) {
      load_packed(packed_part(side), ptx::load_shared_u32(shared_.heads(group_, side) + 4 * warp_),
                  piece.all());
      return piece;
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      ptx::load_matrices(matrices(side, i), piece.pairs[i][0], piece.pairs[i][1],
                         piece.pairs[i + 1][0], piece.pairs[i + 1][1]);
    }
    return piece;
  }

  __device__ __forceinline__ void store_piece(int side, const Piece& piece) const {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      ptx::store_matrices(matrices(side, i), piece.pairs[i][0], piece.pairs[i][1],
                          piece.pairs[i + 1][0], piece.pairs[i + 1][1]);
    }
  }

  // Where this lane's first unit of the warp's part of a packed piece lies.
  __device__ __forceinline__ std::uint32_t packed_part(int side) const {
    return shared_.piece(group_, side) + warp_ * kPlainBytes + lane_ * 16;
  }

  // Two partials and nothing else.
  __device__ bool adds_two() const { return a_.world == 2 && a_.bias == nullptr; }

  // Adds every rank's partial in rank order, then the bias, and rounds once. The sender brings the
  // peers' partials into the buffer one after the other.
  __device__ __forceinline__ void reduce(Piece& piece, int side, int col) {
    if (adds_two()) {
      const Piece term = arrived_partial(side);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        piece.pairs[i][0] = sum_of_two(piece.pairs[i][0], term.pairs[i][0]);
        piece.pairs[i][1] = sum_of_two(piece.pairs[i][1], term.pairs[i][1]);
      }
      return;
    }
    float2 sums[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) sums[i][0] = sums[i][1] = {-0.0f, -0.0f};  // -0 + x is x, even -0
#pragma unroll 1
    for (int rank = 0; rank < a_.world; ++rank) {
      Piece term = piece;
      if (rank != a_.rank) {
        term = arrived_partial(side);
        if (rank != last_peer()) tell_sender(side);
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

  // The left or right piece, whose first column is `col`, into its buffer for the sender.
  __device__ __forceinline__ void hand_over(int side, bool own, int col) {
    Piece piece = own_partial(side);
    if (packs_[side] && !own) return hand_over_packed(side, piece);
    const bool partials = own && a_.world > 1;
    if (!partials) await_buffer(side);
    if (partials || (own && a_.bias != nullptr)) reduce(piece, side, col + lane_ % 4 * 2);
    store_piece(side, piece);
    tell_sender(side);
  }

  __device__ __forceinline__ void hand_over_packed(int side, Piece& piece) {
    const std::uint32_t head = packing_head(piece.all());
    await_buffer(side);
    store_packed(packed_part(side), head, piece.all());
    if (lane_ == 0) ptx::store_shared_u32(shared_.heads(group_, side) + 4 * warp_, head);
    tell_sender(side);
  }

  // fp8 wire, own band: the group's part of the tile, the thread's at (row, col), is reduced and
  // encoded for the sender into the left buffer; what the codes say is stored to the output here.
  __device__ __forceinline__ void hand_over_codes(int row, int col) {
#pragma unroll
    for (int side = 0; side < kSenders; ++side) {
      reduce_side(side, col + side * kPieceCols + lane_ % 4 * 2);
    }
    // Of the thread's row and the one 8 below.
    const float amax[2] = {largest<true>(0), largest<true>(1)};
    if (__all_sync(0xFFFFFFFFu, is_ordinary(amax[0]) && is_ordinary(amax[1]))) {
      encode<true>(amax[0], amax[1], row, col);
    } else {
      encode<false>(largest<false>(0), largest<false>(1), row, col);
    }
  }

  // The largest magnitude of the thread's upper (0) or lower (1) row; a NaN counts as such, or not.
  template <bool with_nan>
  __device__ __forceinline__ float largest(int below) const {
    float amax = 0;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      amax = larger<with_nan>(amax, fabsf(sums_[4 * (i / 2) + 2 * below + i % 2]));
    }
    amax = larger<with_nan>(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 1));
    return larger<with_nan>(amax, __shfl_xor_sync(0xFFFFFFFFu, amax, 2));
  }
  template <bool with_nan>
  __device__ static __forceinline__ float larger(float a, float b) {
    return with_nan ? ptx::max_or_nan(a, b) : fmaxf(a, b);
  }

  template <bool ordinary>
  __device__ __forceinline__ void encode(float upper_amax, float lower_amax, int row, int col) {
    const float scale[2] = {block_scale(upper_amax, false), block_scale(lower_amax, false)};
    const Division by[2] = {Division(scale[0]), Division(scale[1])};
#pragma unroll
    for (int side = 0; side < kSenders; ++side) {
      Piece widened;
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        std::uint32_t codes[2];  // two of column group i, two of group i + 1
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          codes[below] = 0;
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const float* pair = sums_ + 4 * (side * 8 + i + j) + 2 * below;
            const std::uint32_t two = ordinary ? ordinary_codes(pair[0], pair[1], by[below])
                                               : e4m3_codes(pair[0], pair[1], by[below]);
            widened.pairs[i + j][below] = widen_codes(two, scale[below]);
            codes[below] |= two << (16 * j);
          }
          // Four lanes' bytes into the order of the columns: the lower two lanes take group i.
          const int from = lane_ & ~3 | lane_ * 2 & 3;
          const std::uint32_t left = __shfl_sync(0xFFFFFFFFu, codes[below], from);
          const std::uint32_t right = __shfl_sync(0xFFFFFFFFu, codes[below], from + 1);
          codes[below] = __byte_perm(left, right, lane_ & 2 ? 0x7632 : 0x5410);
        }
        store_codes(side * 4 + i / 2, codes);
      }
      store_output(widened, row - lane_ / 4, col + side * kPieceCols);
    }
    if (lane_ % 4 == 0) {
      const std::uint32_t to = shared_.code_scale(group_) + (warp_ * 16 + lane_ / 4) * 4;
      ptx::store_shared_float(to, scale[0]);
      ptx::store_shared_float(to + 8 * 4, scale[1]);
    }
    tell_sender(0);
    tell_sender(1);
  }

  // Column group `sixteen` of the codes' rows, into the left buffer. Matrices of 16 columns: the
  // row and the one 8 below.
  __device__ __forceinline__ void store_codes(int sixteen, const std::uint32_t (&codes)[2]) const {
    const int row = warp_ * 16 + lane_ % 16;
    ptx::store_two_matrices(shared_.piece(group_, 0) + row * 128 + (sixteen ^ (row % 8)) * 16,
                            codes[0], codes[1]);
  }

  // The warp's 16 rows of a piece at (row, col) to the output, in whole lines: through the right
  // buffer, whose partials have been read.
  __device__ __forceinline__ void store_output(const Piece& piece, int row, int col) const {
    __syncwarp();  // an earlier piece has left
    store_piece(1, piece);
    __syncwarp();
    const int unit = lane_ % 8;  // 8 columns, 16 bytes
#pragma unroll
    for (int i = lane_ / 8; i < 16; i += 4) {
      const std::uint32_t from =
          shared_.piece(group_, 1) + (warp_ * 16 + i) * 128 + (unit ^ (i % 8)) * 16;
      if (row + i < a_.order.rows && col + unit * 8 < a_.order.cols) {
        ptx::store_global(
            a_.output + static_cast<std::int64_t>(row + i) * a_.order.cols + col + unit * 8,
            ptx::load_shared(from));
      }
    }
  }

  // The finished values of a side, which are bf16, in place of its sums.
  __device__ __forceinline__ void reduce_side(int side, int col) {
    float* sums = sums_ + 32 * side;
    const Piece own = own_partial(side);
    if (adds_two()) {
      const Piece term = arrived_partial(side);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        set(sums[4 * i], sums[4 * i + 1], sum_of_two(own.pairs[i][0], term.pairs[i][0]));
        set(sums[4 * i + 2], sums[4 * i + 3], sum_of_two(own.pairs[i][1], term.pairs[i][1]));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = -0.0f;
#pragma unroll 1
    for (int rank = 0; rank < a_.world; ++rank) {
      Piece term = own;
      if (rank != a_.rank) {
        term = arrived_partial(side);
        // After the last, the buffers take the codes and the output.
        if (rank != last_peer()) tell_sender(side);
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
      if (a_.bias != nullptr && col + 8 * i < a_.order.cols) {
        const auto bias = *reinterpret_cast<const std::uint32_t*>(a_.bias + col + 8 * i);
        add(four[0], four[1], bias);
        add(four[2], four[3], bias);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = __bfloat162float(__float2bfloat16_rn(four[j]));
    }
  }

  __device__ static __forceinline__ void set(float& left, float& right, std::uint32_t pair) {
    const float2 values = widened(pair);
    left = values.x;
    right = values.y;
  }
  __device__ static __forceinline__ void add(float& left, float& right, std::uint32_t pair) {
    const float2 values = widened(pair);
    left += values.x;
    right += values.y;
  }

  const FusedArguments& a_;
  const Shared& shared_;
  const int group_, thread_, warp_, lane_;
  const int depth_blocks_;
  const int first_row_;                                    // the thread's; it has 8 below too
  const std::uint64_t rows_descriptor_, cols_descriptor_;  // of the first stage
  std::uint32_t row_scales_;                               // of the first stage: the thread's row's
  int empty_for_;              // the block whose loader this thread tells of a read stage; or -1
  bool packs_[kSenders] = {};  // the tile's partials, by side
  Ring ring_;
  Phases ready_;
  float sums_[64];
};

}  // namespace
}  // namespace rowband::cuda
