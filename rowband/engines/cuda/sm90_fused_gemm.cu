// The fused kernel: block-scale fp8 GEMM, scatter, reduce and gather in one persistent grid.
//
// A cluster of two blocks computes one 256 x 256 tile of the plan at a time, in the plan's order:
// bands of the peers first, the own band last. Per block:
//   warp 8          loads: one thread feeds a ring of four stages; the rows' half that it loads
//   goes to
//                   both blocks (multicast inside the cluster)
//   warps 0-3, 4-7  multiply: 128 x 128 of sums in registers each; a stage is released before the
//   last
//                   promotion; then round, and for the own band wait for the partials and reduce
//   warps 9, 10     send: one per multiplying group; they store finished pieces where they belong,
//   the
//                   peer's window or every rank's output, and signal the chunk when its last is
//                   written
//   warp 11         in the first block: announces the call, and at its end waits for the peers'
//   results
//
// Protocol rules kept here (docs/design.md): 2, only own-band tiles wait; 3, a flag is stored with
// release after the chunk's bulk stores have completed; 9, every wait has a deadline.
#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"
#include "rowband/engines/cuda/quantize_device.cuh"

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
                             8 * kGroups * 2 + kGroups * kCodeScaleBytes;
static_assert(kSharedBytes <= 227 * 1024);
constexpr int kSenderThreads = kGroupThreads + 32;  // of a hand-over barrier

constexpr std::uint32_t kScatterLeg = 0, kGatherLeg = 1, kStartLeg = 2;

// Folded into a flag's 32 bits without 0, which fresh flags hold.
__device__ std::uint32_t epoch_of(std::uint64_t call) {
  return static_cast<std::uint32_t>((call - 1) % 0xFFFFFFFFu + 1);
}

struct Shared {
  // Shared-memory addresses.
  std::uint32_t stages, pieces, scales, code_scales, tiles, full, empty, partials;
  __device__ explicit Shared(std::uint32_t base)  // aligned to 1024
      : stages(base),
        pieces(stages + kStages * kStageBytes),
        scales(pieces + kGroups * 2 * kPieceBytes),
        code_scales(scales + kGroups * 4 * kWarpScaleBytes),
        tiles(code_scales + kGroups * kCodeScaleBytes),
        full(tiles + 16 * kTileSlots),
        empty(full + 8 * kStages),
        partials(empty + 8 * kStages) {}
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

__device__ void fail_call(const FusedArguments& a, Status::Code code, std::uint32_t leg,
                          std::uint32_t peer, std::uint32_t chunk, std::int64_t rows) {
  if (atomicCAS(&a.status->code, Status::kFine, code) != Status::kFine) return;
  a.host_status->leg = leg;
  a.host_status->peer = peer;
  a.host_status->chunk = chunk;
  a.host_status->rows = rows;
  __threadfence_system();
  ptx::store_release_system(&a.host_status->code, code);
}

__device__ bool failed(const FusedArguments& a) {
  return *reinterpret_cast<volatile std::uint32_t*>(&a.status->code) != Status::kFine;
}

// One thread waits; false once the call has failed.
__device__ bool await(const FusedArguments& a, const std::uint32_t* flag, std::uint32_t epoch,
                      std::uint32_t leg, std::uint32_t peer, std::uint32_t chunk) {
  if (ptx::load_acquire_system(flag) == epoch) return true;
  const std::uint64_t begin = ptx::clock_ns();
  while (ptx::load_acquire_system(flag) != epoch) {
    if (failed(a)) return false;
    if (ptx::clock_ns() - begin > a.deadline_ns) {
      fail_call(a, Status::kDeadline, leg, peer, chunk, 0);
      return false;
    }
    __nanosleep(100);
  }
  return true;
}

__device__ int clusters() { return static_cast<int>(gridDim.x / 2); }
__device__ DeviceTileWalk first_tile(const FusedArguments& a) {
  return {a.order, a.rank, static_cast<int>(blockIdx.x / 2)};
}

__device__ void load_tiles(const FusedArguments& a, const Shared& shared) {
  const std::uint32_t block = ptx::block_of_cluster();
  const int depth_blocks = static_cast<int>(a.depth / kDepth);
  Ring ring;
  int slot = 0;
  for (DeviceTileWalk walk = first_tile(a); !walk.done(); walk.advance(clusters())) {
    const DeviceTile tile = walk.tile();
    const int rows = tile.rows.begin + static_cast<int>(block) * (kTileRows / 2);
    const int cols = tile.cols.begin + static_cast<int>(block) * kBlockCols;
    for (int k = 0; k < depth_blocks; ++k) {
      ptx::barrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
      const std::uint32_t full = shared.full + 8 * ring.stage;
      if (k == 0) {
        ptx::store_shared(shared.tile(slot++), {tile.rows.begin, cols, tile.band, tile.chunk});
      }
      const std::uint32_t stage = shared.stages + ring.stage * kStageBytes;
      ptx::barrier_expect(full, kStageBytes);
      ptx::tensor_load_multicast(stage + block * (kRowsBytes / 2), &a.x, k * kDepth, rows, full, 3);
      ptx::tensor_load(stage + kRowsBytes, &a.w, k * kDepth, cols, full);
      ring.advance();
    }
  }
}

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
        epoch_(epoch_of(*a.calls + 1)),
        depth_blocks_(static_cast<int>(a.depth / kDepth)),
        scales_(shared.scales + (group * 4 + warp_) * kWarpScaleBytes),
        rows_descriptor_(ptx::matrix_descriptor(shared.stages + group * 128 * kDepth)),
        cols_descriptor_(ptx::matrix_descriptor(shared.stages + kRowsBytes)) {}

  __device__ __forceinline__ void run() {
    const int first = static_cast<int>(blockIdx.x / 2);
    const int tiles = (a_.order.tiles() - first + clusters() - 1) / clusters();
    int4 tile;
    if (tiles > 0) tile = begin_tile(0);
    for (int i = 0; i < tiles; ++i) {
      multiply();
      const int4 finished = tile;
      if (i + 1 < tiles) tile = begin_tile(i + 1);  // its scales arrive during the epilogue
      const bool own = finished.z == a_.rank;
      if constexpr (fp8) {
        if (own) {
          hand_over_codes(0, finished.x + group_ * 128, finished.y);
          hand_over_codes(1, finished.x + group_ * 128, finished.y);
          continue;
        }
      }
#pragma unroll
      for (int piece = 0; piece < kPiecesPerTile; ++piece) {
        hand_over(piece, own && !fp8, finished.y);
      }
    }
  }

 private:
  // Learns from the loader which tile comes next, and loads its first scales.
  __device__ __forceinline__ int4 begin_tile(int index) {
    ptx::barrier_wait(shared_.full + 8 * ring_.stage, ring_.parity);
    const int4 tile = ptx::load_shared(shared_.tile(index));
    const int last = a_.order.rows - 1;
    const int row = tile.x + group_ * 128 + lane_ / 16 * 64 + warp_ * 16 + lane_ % 16;
    row_scale_ = a_.x_scales + (row < last ? row : last) * a_.x_scale_row;
    const int last_block = (a_.order.cols - 1) / kDepth, block = tile.y / kDepth;
    col_scale_ = a_.w_scales + (block < last_block ? block : last_block) * a_.w_scale_row;
    copy_scales(0);
    copy_scales(1);
    return tile;
  }

  // Of depth block k into the warp's slot: lane l that of the warp's row l (from 16 on, of its
  // second half), lane 0 the columns' too.
  __device__ __forceinline__ void copy_scales(int k) {
    if (k < depth_blocks_) {
      const std::uint32_t to = scales_ + k % kScaleSlots * kScaleSlotBytes;
      ptx::copy_word(to + lane_ * 4, row_scale_ + k * a_.x_scale_block);
      if (lane_ == 0) ptx::copy_word(to + 32 * 4, col_scale_ + k * a_.w_scale_block);
    }
    ptx::copy_commit();
  }

  // sums_ = the group's 128 x 128 of x * w^T at the tile begun last.
  __device__ __forceinline__ void multiply() {
#pragma unroll
    for (int i = 0; i < 64; ++i) sums_[0][i] = sums_[1][i] = 0;
    float scale[4];
    make_ready(scale, 0);
    for (int k = 0; k < depth_blocks_; ++k) multiply_block(scale, k);
  }

  // Depth block k: scale[i] becomes that of the thread's row i, and its stage is there.
  __device__ __forceinline__ void make_ready(float (&scale)[4], int k) {
    ptx::copy_wait<kScaleSlots - 1>();
    __syncwarp();
    const std::uint32_t from = scales_ + k % kScaleSlots * kScaleSlotBytes;
    const float cols_scale = ptx::load_shared_float(from + 32 * 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale[i] = cols_scale * ptx::load_shared_float(from + (i * 8 + lane_ / 4) * 4);
      asm volatile("" : "+f"(scale[i]));  // not put off until its use
    }
    __syncwarp();
    copy_scales(k + kScaleSlots);
    ptx::barrier_wait(shared_.full + 8 * ring_.stage, ring_.parity);
  }

  // Adds block k, which is ready, to the sums, and makes the next ready meanwhile.
  __device__ __forceinline__ void multiply_block(float (&scale)[4], int k) {
    const std::uint32_t stage = ring_.stage;
    const std::uint64_t cols = cols_descriptor_ + stage * (kStageBytes / 16);
    const std::uint64_t rows = rows_descriptor_ + stage * (kStageBytes / 16);
    float block[64];
    start_product(block, rows, cols);
    ptx::wgmma_wait();
    add_product(0, block, scale[0], scale[1]);
    start_product(block, rows + 64 * kDepth / 16, cols);
    const float upper = scale[2], lower = scale[3];
    ring_.advance();
    if (k + 1 < depth_blocks_) make_ready(scale, k + 1);
    ptx::wgmma_wait();
    // Both blocks' loaders write this stage, so both must know that it has been read.
    if (thread_ < 2) ptx::barrier_arrive_at(shared_.empty + 8 * stage, thread_);
    add_product(1, block, upper, lower);
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

  // The next of the peers' partials that the sender brings into the buffer.
  __device__ __forceinline__ Piece arrived_partial(int buffer) {
    ptx::barrier_wait(shared_.partial(group_, buffer), partial_parity_[buffer]);
    partial_parity_[buffer] ^= 1;
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
        if (rank != last_peer()) {
          ptx::named_barrier_arrive(piece_full(group_, buffer), kSenderThreads);
        }
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
    const int half = index / 2, right = index % 2, buffer = index % 2;
    Piece piece = own_partial(half, right);
    const bool partials = own && a_.world > 1;
    if (!partials) ptx::named_barrier_sync(piece_empty(group_, buffer), kSenderThreads);
    if (partials || (own && a_.bias != nullptr)) {
      reduce(piece, buffer, tile_col + right * kPieceCols + lane_ % 4 * 2);
    }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      ptx::store_matrices(matrices(buffer, i), piece.pairs[i][0], piece.pairs[i][1],
                          piece.pairs[i + 1][0], piece.pairs[i + 1][1]);
    }
    ptx::fence_shared_to_async();
    ptx::named_barrier_arrive(piece_full(group_, buffer), kSenderThreads);
  }

  // fp8 wire, own band: half `half` of the tile at (row, col) is reduced, encoded into buffer 0 for
  // the sender, and what the codes say is stored to the output here.
  __device__ __forceinline__ void hand_over_codes(int half, int row, int col) {
    reduce_half(half, col);
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
      store_codes(i / 2, codes);
    }
    if (lane_ % 4 == 0) {
      const std::uint32_t to = shared_.code_scales + group_ * kCodeScaleBytes;
      ptx::store_shared_float(to + (warp_ * 16 + lane_ / 4) * 4, scale[0]);
      ptx::store_shared_float(to + (warp_ * 16 + lane_ / 4 + 8) * 4, scale[1]);
    }
    ptx::fence_shared_to_async();
    ptx::named_barrier_arrive(piece_full(group_, 0), kSenderThreads);
  }

  // Column group `sixteen` of the codes' rows into buffer 0.
  __device__ __forceinline__ void store_codes(int sixteen, const std::uint32_t (&codes)[2]) const {
    const int row = warp_ * 16 + lane_ % 16;
    ptx::store_two_matrices(shared_.piece(group_, 0) + row * 128 + (sixteen ^ (row % 8)) * 16,
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
          term = arrived_partial(right);
          // After the last, only buffer 1 may be refilled; buffer 0 takes the codes.
          if (rank != last_peer() || right == 1) {
            ptx::named_barrier_arrive(piece_full(group_, right), kSenderThreads);
          }
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
  const std::uint32_t epoch_;
  const int depth_blocks_;
  const std::uint32_t scales_;                             // the warp's slots
  const std::uint64_t rows_descriptor_, cols_descriptor_;  // of the first stage
  Ring ring_;
  std::uint32_t partial_parity_[2] = {0, 0};
  const float* row_scale_;
  const float* col_scale_;
  float sums_[2][64];
};

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
  if (tile.band != a.rank) {
    ptx::store_release_system(a.scatter_flags_at[tile.band] + tile.chunk, epoch);
    return;
  }
  for (int step = 1; step < a.world; ++step) {
    const int peer = (a.rank + step) % a.world;
    ptx::store_release_system(a.gather_flags_at[peer] + tile.chunk, epoch);
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
    for (int step = 1; step < a_.world && row < a_.order.rows; ++step) {
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
      ptx::tensor_store(&a_.received_at[band], from, col, row_in_band_ + below);
    } else {
      for (int step = 0; step < a_.world; ++step) {
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

__device__ void announce(const FusedArguments& a, int peer, std::uint64_t call, std::int64_t rows) {
  Card* card = a.card_at[peer] + call % 2;
  *reinterpret_cast<volatile std::int64_t*>(&card->rows) = rows;
  __threadfence_system();
  ptx::store_release_system(&card->epoch, epoch_of(call));
}

__global__ void refuse_call(const __grid_constant__ FusedArguments a) {
  const std::uint64_t call = ++*a.calls;
  for (int peer = 0; peer < a.world; ++peer) {
    if (peer != a.rank) announce(a, peer, call, kRefused);
  }
}

// One warp of the first block: lane p deals with peer p.
__device__ void announce_call(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  const std::uint64_t call = *a.calls + 1;
  if (peer >= a.world || peer == a.rank) return;
  announce(a, peer, call, a.order.rows);

  const Card* from = a.card[peer] + call % 2;
  if (!await(a, &from->epoch, epoch_of(call), kStartLeg, peer, 0)) return;
  const std::int64_t rows = *reinterpret_cast<const volatile std::int64_t*>(&from->rows);
  if (rows != a.order.rows) fail_call(a, Status::kDisagreement, kStartLeg, peer, 0, rows);
}

__device__ void await_results(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  if (peer >= a.world || peer == a.rank) return;
  const std::uint32_t epoch = epoch_of(*a.calls + 1);
  for (int chunk = 0; chunk < a.order.chunk_count(peer); ++chunk) {
    if (!await(a, a.gather_flags[peer] + chunk, epoch, kGatherLeg, peer, chunk)) return;
  }
}

// fp8 wire: the peers' finished rows become bf16 as they arrive. Any warp may take part: groups of
// rows are dealt out by a counter, in the order in which they arrive.
class Widener {
 public:
  __device__ explicit Widener(const FusedArguments& a)
      : a_(a), lane_(threadIdx.x % 32), epoch_(epoch_of(*a.calls + 1)) {}

  __device__ void run() {
    int before = 0;  // groups in the chunks behind
    for (int chunk = 0; chunk < a_.order.chunks; ++chunk) {
      for (int step = 1; step < a_.world; ++step) {
        const int peer = (a_.rank + a_.world - step) % a_.world;
        if (chunk >= a_.order.chunk_count(peer)) continue;
        const auto rows = a_.order.rows_of(a_.order.chunk_tiles(peer, chunk));
        const int groups = (rows.size() + kRows - 1) / kRows;
        if (taken_ < 0) take();
        if (taken_ - before >= groups) {
          before += groups;
          continue;
        }
        if (!chunk_arrived(peer, chunk)) return;
        for (; taken_ - before < groups; take()) {
          const int begin = rows.begin + (taken_ - before) * kRows;
          widen_rows(begin, min(begin + kRows, rows.end));
        }
        before += groups;
      }
    }
  }

 private:
  static constexpr int kRows = 3;
  static constexpr int kColsPerLane = 16;

  __device__ void take() {
    int taken = 0;
    if (lane_ == 0) taken = static_cast<int>(atomicAdd(a_.widened, 1));
    taken_ = __shfl_sync(0xFFFFFFFFu, taken, 0);
  }

  __device__ bool chunk_arrived(int peer, int chunk) const {
    bool arrived = true;
    if (lane_ == 0) {
      arrived = await(a_, a_.gather_flags[peer] + chunk, epoch_, kGatherLeg, peer, chunk);
    }
    return __shfl_sync(0xFFFFFFFFu, arrived, 0);
  }

  __device__ void widen_rows(int begin, int end) const {
    const int rows = end - begin;
    const std::int64_t first = static_cast<std::int64_t>(begin) * a_.order.cols;
    for (int col = lane_ * kColsPerLane; col < a_.order.cols; col += 32 * kColsPerLane) {
      const E4m3* from = a_.codes + first + col;
      const float* scale = a_.code_scales + col / kDepth * a_.code_scale_rows + begin;
      uint4 codes[kRows];
      float scales[kRows];
#pragma unroll
      for (int i = 0; i < kRows; ++i, from += a_.order.cols) {
        if (i < rows) {
          codes[i] = ptx::load_past_first_level(from);
          scales[i] = ptx::load_float_past_first_level(scale + i);
        }
      }
      auto* out = a_.output + first + col;
#pragma unroll
      for (int i = 0; i < kRows; ++i, out += a_.order.cols) {
        if (i < rows) {
          reinterpret_cast<uint4*>(out)[0] = widen(codes[i].x, codes[i].y, scales[i]);
          reinterpret_cast<uint4*>(out)[1] = widen(codes[i].z, codes[i].w, scales[i]);
        }
      }
    }
  }

  __device__ static uint4 widen(std::uint32_t left, std::uint32_t right, float scale) {
    return {widen_codes(left & 0xFFFF, scale), widen_codes(left >> 16, scale),
            widen_codes(right & 0xFFFF, scale), widen_codes(right >> 16, scale)};
  }

  const FusedArguments& a_;
  const int lane_;
  const std::uint32_t epoch_;
  int taken_ = -1;
};

// The last block to end makes the counters ready for the next call.
__device__ void finish_call(const FusedArguments& a) {
  __threadfence();
  if (atomicAdd(a.blocks_done, 1) + 1 != gridDim.x) return;
  __threadfence();
  for (int i = 0; i < a.world * a.order.chunks; ++i) a.chunk_done[i] = 0;
  *a.widened = 0;
  *a.blocks_done = 0;
  ++*a.calls;
}

template <bool fp8>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    fused_gemm(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) char raw[];
  const Shared shared(ptx::shared_address(raw));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(shared.full + 8 * stage, 1);
      ptx::barrier_init(shared.empty + 8 * stage, 2 * kGroups);
    }
    for (int i = 0; i < kGroups * 2; ++i) ptx::barrier_init(shared.partials + 8 * i, 1);
    ptx::barrier_init_visible_to_cluster();
  }
  ptx::cluster_sync();

  // From a shuffle, so that the compiler knows it to be the same across the warp.
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp >= kGroups * 4) {
    ptx::give_up_registers<48>();
    if (warp == 8) {
      if (threadIdx.x % 32 == 0) load_tiles(a, shared);
    } else if (warp < 11) {
      Sender<fp8>(a, shared, warp - 9).run();
    } else {
      if (blockIdx.x == 0) announce_call(a);
      __syncwarp();
      if (!fp8 && blockIdx.x == 0) await_results(a);
      if (fp8) Widener(a).run();
    }
  } else {
    ptx::take_registers<232>();
    Multiplier<fp8>(a, shared, warp / 4).run();
    if (fp8) Widener(a).run();
  }
  __syncwarp();
  ptx::cluster_sync();
  if (threadIdx.x == 0) finish_call(a);
}

}  // namespace

void load_fused_kernel() {
  cudaFuncAttributes attributes;
  for (const auto kernel : {fused_gemm<false>, fused_gemm<true>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
          "raising the shared memory of the fused kernel");
    check(cudaFuncGetAttributes(&attributes, kernel), "loading the fused kernel");
  }
  check(cudaFuncGetAttributes(&attributes, refuse_call), "loading the refusal");
}

void launch_refuse(const FusedArguments& arguments, cudaStream_t stream) {
  refuse_call<<<1, 1, 0, stream>>>(arguments);
  check(cudaGetLastError(), "launching the refusal of a call");
}

void launch_fused(const FusedArguments& arguments, int clusters, cudaStream_t stream) {
  const auto kernel = arguments.fp8_wire ? fused_gemm<true> : fused_gemm<false>;
  kernel<<<2 * clusters, kThreads, kSharedBytes, stream>>>(arguments);
  check(cudaGetLastError(), "launching the fused kernel");
}

}  // namespace rowband::cuda
