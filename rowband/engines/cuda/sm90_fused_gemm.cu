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
constexpr int kSharedBytes =
    1024 + kStages * kStageBytes + kGroups * 2 * kPieceBytes + 16 * kStages;
constexpr int kSenderThreads = kGroupThreads + 32;  // of a hand-over barrier

constexpr std::uint32_t kScatterLeg = 0, kGatherLeg = 1, kStartLeg = 2;

// Folded into a flag's 32 bits without 0, which fresh flags hold.
__device__ std::uint32_t epoch_of(std::uint64_t call) {
  return static_cast<std::uint32_t>((call - 1) % 0xFFFFFFFFu + 1);
}

struct Shared {
  std::uint32_t stages, pieces, full, empty;  // shared-memory addresses
  __device__ explicit Shared(std::uint32_t base)
      : stages((base + 1023) & ~1023u),
        pieces(stages + kStages * kStageBytes),
        full(pieces + kGroups * 2 * kPieceBytes),
        empty(full + 8 * kStages) {}
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
__device__ int group_barrier(int group) { return 9 + group; }

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
  for (DeviceTileWalk walk = first_tile(a); !walk.done(); walk.advance(clusters())) {
    const DeviceTile tile = walk.tile();
    const int rows = tile.rows.begin + static_cast<int>(block) * (kTileRows / 2);
    const int cols = tile.cols.begin + static_cast<int>(block) * kBlockCols;
    for (int k = 0; k < depth_blocks; ++k) {
      ptx::barrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
      const std::uint32_t full = shared.full + 8 * ring.stage;
      const std::uint32_t stage = shared.stages + ring.stage * kStageBytes;
      ptx::barrier_expect(full, kStageBytes);
      ptx::tensor_load_multicast(stage + block * (kRowsBytes / 2), &a.x, k * kDepth, rows, full, 3);
      ptx::tensor_load(stage + kRowsBytes, &a.w, k * kDepth, cols, full);
      ring.advance();
    }
  }
}

// The scales that a thread's four rows take in one depth block.
struct RowScales {
  float of[4];
};

class Multiplier {
 public:
  __device__ Multiplier(const FusedArguments& a, const Shared& shared, int group)
      : a_(a),
        shared_(shared),
        group_(group),
        thread_(threadIdx.x % kGroupThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        epoch_(epoch_of(*a.calls + 1)) {}

  __device__ __forceinline__ void run() {
    for (DeviceTileWalk walk = first_tile(a_); !walk.done(); walk.advance(clusters())) {
      const DeviceTile tile = walk.tile();
      const int row = tile.rows.begin + group_ * 128;
      const int col = tile.cols.begin + static_cast<int>(ptx::block_of_cluster()) * kBlockCols;
      multiply(row, col);
      const bool own = tile.band == a_.rank;
      if (own && a_.world > 1) await_partials(tile.chunk);
#pragma unroll
      for (int piece = 0; piece < kPiecesPerTile; ++piece) hand_over(piece, own, row, col);
    }
  }

 private:
  // Row of the thread's first value within its group's 128; the others are 8, 64 and 72 below.
  __device__ int first_row() const { return warp_ * 16 + lane_ / 4; }

  __device__ __forceinline__ void load_scales(RowScales& s, const float* const (&rows)[4],
                                              int k) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) s.of[i] = ptx::load_early(rows[i] + k * a_.x_scale_block);
  }

  // Lane l gets the columns' scale of depth block k + l: a warp holds 32 blocks' and hands them
  // round. A load by all lanes from one address would be moved to a uniform register at once,
  // waiting for it.
  __device__ __forceinline__ void load_col_scales(const float* cols, int k, int depth_blocks) {
    if (k + lane_ < depth_blocks) col_scales_ = cols[(k + lane_) * a_.w_scale_block];
  }

  // sums_ = the group's 128 x 128 of x * w^T at (row, col).
  __device__ __forceinline__ void multiply(int row, int col) {
    const float* row_scales[4];
    const std::int64_t last = a_.order.rows - 1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::int64_t r = row + first_row() + i % 2 * 8 + i / 2 * 64;
      row_scales[i] = a_.x_scales + (r < last ? r : last) * a_.x_scale_row;
    }
    const std::int64_t last_block = (a_.order.cols - 1) / kDepth, block = col / kDepth;
    const float* cols = a_.w_scales + (block < last_block ? block : last_block) * a_.w_scale_row;
#pragma unroll
    for (int i = 0; i < 64; ++i) sums_[0][i] = sums_[1][i] = 0;

    // Two sets in turn, so that a set is never copied, which would wait for its loads.
    const int depth_blocks = static_cast<int>(a_.depth / kDepth);
    RowScales even, odd;
    load_scales(even, row_scales, 0);
    for (int k = 0; k < depth_blocks; k += 2) {
      if (k % 32 == 0) load_col_scales(cols, k, depth_blocks);
      multiply_block(even, odd, row_scales, k, depth_blocks);
      if (k + 1 < depth_blocks) multiply_block(odd, even, row_scales, k + 1, depth_blocks);
    }
  }

  __device__ __forceinline__ void multiply_block(const RowScales& now, RowScales& next,
                                                 const float* const (&row_scales)[4], int k,
                                                 int depth_blocks) {
    const float cols_scale = __shfl_sync(0xFFFFFFFFu, col_scales_, k % 32);
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale[i] = now.of[i] * cols_scale;
      asm volatile("" : "+f"(scale[i]));  // before the next loads: both wait on one scoreboard
    }
    if (k + 1 < depth_blocks) load_scales(next, row_scales, k + 1);

    ptx::barrier_wait(shared_.full + 8 * ring_.stage, ring_.parity);
    const std::uint32_t stage = shared_.stages + ring_.stage * kStageBytes;
    const std::uint64_t cols = ptx::matrix_descriptor(stage + kRowsBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t rows =
          ptx::matrix_descriptor(stage + (group_ * 128 + half * 64) * kDepth);
      float block[64];
      ptx::pin(block);
      ptx::wgmma_fence();
#pragma unroll
      for (int step = 0; step < 4; ++step) {  // 32 deep, 32 bytes: 2 units of a descriptor
        ptx::wgmma_m64n128k32(block, rows + 2 * step, cols + 2 * step, step);
      }
      ptx::wgmma_commit();
      ptx::pin(block);
      ptx::wgmma_wait();
      // Both blocks' loaders write this stage, so both must know that it has been read.
      if (half == 1 && thread_ < 2)
        ptx::barrier_arrive_at(shared_.empty + 8 * ring_.stage, thread_);
#pragma unroll
      for (int i = 0; i < 64; ++i) {
        sums_[half][i] = fmaf(block[i], scale[half * 2 + (i / 2) % 2], sums_[half][i]);
      }
    }
    ring_.advance();
  }

  __device__ void await_partials(int chunk) {
    if (thread_ < a_.world && thread_ != a_.rank) {
      await(a_, a_.scatter_flags[thread_] + chunk, epoch_, kScatterLeg, thread_, chunk);
    }
    ptx::named_barrier_sync(group_barrier(group_), kGroupThreads);
  }

  // Adds every rank's partial, in rank order, to the own one in `values`, then the bias; rounds
  // once. The thread's pairs: columns col + 8i and the row or the one 8 below.
  __device__ __forceinline__ void reduce(std::uint32_t (&values)[8][2], int row, int col) const {
    float2 sums[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i)
      sums[i][0] = sums[i][1] = {-0.0f, -0.0f};  // -0 + x is x, even for -0
#pragma unroll 1
    for (int rank = 0; rank < a_.world; ++rank) {
      std::uint32_t terms[8][2];
      const Bf16* from = a_.received[rank] +
                         static_cast<std::int64_t>(row - a_.own_band.begin) * a_.order.cols + col;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int below = 0; below < 2; ++below) {
          terms[i][below] = values[i][below];
          if (rank != a_.rank) {
            terms[i][below] = 0;
            if (row + 8 * below < a_.own_band.end && col + 8 * i < a_.order.cols) {
              terms[i][below] = ptx::load_shared_level(from + below * 8 * a_.order.cols + 8 * i);
            }
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        add(sums[i][0], terms[i][0]);
        add(sums[i][1], terms[i][1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (a_.bias != nullptr && col + 8 * i < a_.order.cols) {
        const auto bias = *reinterpret_cast<const std::uint32_t*>(a_.bias + col + 8 * i);
        add(sums[i][0], bias);
        add(sums[i][1], bias);
      }
      values[i][0] = round(sums[i][0].x, sums[i][0].y);
      values[i][1] = round(sums[i][1].x, sums[i][1].y);
    }
  }

  __device__ static __forceinline__ void add(float2& sum, std::uint32_t pair) {
    sum.x += __uint_as_float(pair << 16);
    sum.y += __uint_as_float(pair & 0xFFFF0000u);
  }

  __device__ static __forceinline__ std::uint32_t round(float left, float right) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(left, right);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }

  // Piece `piece` of the tile into a buffer, for the sender.
  __device__ __forceinline__ void hand_over(int piece, bool own, int tile_row, int tile_col) {
    const int half = piece / 2, right = piece % 2, buffer = piece % 2;
    const std::uint32_t to = shared_.pieces + (group_ * 2 + buffer) * kPieceBytes;
    std::uint32_t values[8][2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float* sums = sums_[half] + 4 * (right * 8 + i);
      values[i][0] = round(sums[0], sums[1]);
      values[i][1] = round(sums[2], sums[3]);
    }
    if (own && (a_.world > 1 || a_.bias != nullptr)) {
      reduce(values, tile_row + half * 64 + first_row(),
             tile_col + right * kPieceCols + lane_ % 4 * 2);
    }
    ptx::named_barrier_sync(piece_empty(group_, buffer), kSenderThreads);
    const int matrix_row = warp_ * 16 + (lane_ / 8 % 2) * 8 + lane_ % 8;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const int sixteen = (i + lane_ / 16) ^ (matrix_row % 8);  // 128-byte swizzle
      ptx::store_matrices(to + matrix_row * 128 + sixteen * 16, values[i][0], values[i][1],
                          values[i + 1][0], values[i + 1][1]);
    }
    ptx::fence_shared_to_async();
    ptx::named_barrier_arrive(piece_full(group_, buffer), kSenderThreads);
  }

  const FusedArguments& a_;
  const Shared& shared_;
  const int group_, thread_, warp_, lane_;
  const std::uint32_t epoch_;
  Ring ring_;
  float col_scales_ = 0;
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

// A whole warp, for the barriers; its first lane sends.
__device__ void send_pieces(const FusedArguments& a, const Shared& shared, int group) {
  DeviceTileWalk walk = first_tile(a);
  if (walk.done()) return;
  const std::uint32_t epoch = epoch_of(*a.calls + 1);
  const bool sends = threadIdx.x % 32 == 0;
  for (int buffer = 0; buffer < 2; ++buffer) {
    ptx::named_barrier_arrive(piece_empty(group, buffer), kSenderThreads);
  }
  while (!walk.done()) {
    const DeviceTile tile = walk.tile();
    walk.advance(clusters());
    const bool last_tile = walk.done();
    const int row = tile.rows.begin + group * 128;
    const int row_in_band = row - a.order.rows_of(a.order.band_tiles(tile.band)).begin;
    const int col = tile.cols.begin + static_cast<int>(ptx::block_of_cluster()) * kBlockCols;
    for (int piece = 0; piece < kPiecesPerTile; ++piece) {
      const int half = piece / 2, right = piece % 2, buffer = piece % 2;
      ptx::named_barrier_sync(piece_full(group, buffer), kSenderThreads);
      if (sends) {
        const std::uint32_t from = shared.pieces + (group * 2 + buffer) * kPieceBytes;
        const int c = col + right * kPieceCols, below = half * 64;
        if (tile.band != a.rank) {
          ptx::tensor_store(&a.received_at[tile.band], from, c, row_in_band + below);
        } else {
          for (int step = 0; step < a.world; ++step) {
            ptx::tensor_store(&a.output_at[(a.rank + step) % a.world], from, c, row + below);
          }
        }
        ptx::store_commit();
        ptx::store_wait_read<0>();
      }
      __syncwarp();
      // The multiplying group takes exactly one round of each buffer's barrier per piece.
      if (!(last_tile && piece >= kPiecesPerTile - 2)) {
        ptx::named_barrier_arrive(piece_empty(group, buffer), kSenderThreads);
      }
    }
    if (sends) {
      ptx::store_wait_written();
      chunk_part_done(a, tile, epoch);
    }
    __syncwarp();
  }
}

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
__device__ void announce_and_await_results(const FusedArguments& a) {
  const int peer = threadIdx.x % 32;
  const std::uint64_t call = *a.calls + 1;
  const std::uint32_t epoch = epoch_of(call);
  if (peer >= a.world || peer == a.rank) return;
  announce(a, peer, call, a.order.rows);

  const Card* from = a.card[peer] + call % 2;
  if (!await(a, &from->epoch, epoch, kStartLeg, peer, 0)) return;
  const std::int64_t rows = *reinterpret_cast<const volatile std::int64_t*>(&from->rows);
  if (rows != a.order.rows) return fail_call(a, Status::kDisagreement, kStartLeg, peer, 0, rows);
  for (int chunk = 0; chunk < a.order.chunk_count(peer); ++chunk) {
    if (!await(a, a.gather_flags[peer] + chunk, epoch, kGatherLeg, peer, chunk)) return;
  }
}

// The last block to end makes the counters ready for the next call.
__device__ void finish_call(const FusedArguments& a) {
  __threadfence();
  if (atomicAdd(a.blocks_done, 1) + 1 != gridDim.x) return;
  __threadfence();
  for (int i = 0; i < a.world * a.order.chunks; ++i) a.chunk_done[i] = 0;
  *a.blocks_done = 0;
  ++*a.calls;
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    fused_gemm(const __grid_constant__ FusedArguments a) {
  extern __shared__ char raw[];
  const Shared shared(ptx::shared_address(raw));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::barrier_init(shared.full + 8 * stage, 1);
      ptx::barrier_init(shared.empty + 8 * stage, 2 * kGroups);
    }
    ptx::barrier_init_visible_to_cluster();
  }
  ptx::cluster_sync();

  // From a shuffle, so that the compiler knows it to be the same across the warp.
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp >= kGroups * 4) {
    ptx::give_up_registers<40>();
    if (warp == 8) {
      if (threadIdx.x % 32 == 0) load_tiles(a, shared);
    } else if (warp < 11) {
      send_pieces(a, shared, warp - 9);
    } else if (blockIdx.x == 0) {
      announce_and_await_results(a);
    }
  } else {
    ptx::take_registers<232>();
    Multiplier(a, shared, warp / 4).run();
  }
  __syncwarp();
  ptx::cluster_sync();
  if (threadIdx.x == 0) finish_call(a);
}

}  // namespace

void load_fused_kernel() {
  check(cudaFuncSetAttribute(fused_gemm, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
        "raising the shared memory of the fused kernel");
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, fused_gemm), "loading the fused kernel");
  check(cudaFuncGetAttributes(&attributes, refuse_call), "loading the refusal");
}

void launch_refuse(const FusedArguments& arguments, cudaStream_t stream) {
  refuse_call<<<1, 1, 0, stream>>>(arguments);
  check(cudaGetLastError(), "launching the refusal of a call");
}

void launch_fused(const FusedArguments& arguments, int clusters, cudaStream_t stream) {
  fused_gemm<<<2 * clusters, kThreads, kSharedBytes, stream>>>(arguments);
  check(cudaGetLastError(), "launching the fused kernel");
}

}  // namespace rowband::cuda
