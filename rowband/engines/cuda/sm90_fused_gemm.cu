// The fused kernel: block-scale fp8 GEMM, scatter, reduce and gather in one persistent grid.
//
// A cluster of two blocks computes one 256 x 256 tile of the plan at a time, in the plan's order:
// bands of the peers first, the own band last. Per block:
//   warp 8        loads: feeds a ring of stages with operands and their scales; the half of the rows
//                 that it loads goes to both blocks (multicast inside the cluster)
//   warps 0 to 7  two groups that multiply (multiplier_device.cuh), 128 x 128 of sums in registers
//                 each
//   warps 9, 10   one sender per group (sender_device.cuh)
//   warp 11       in the first block: announces the call, awaits the peers' results
//                 (arrivals_device.cuh); with the fp8 wire, in every block: widens what arrives,
//                 and the multiplying warps join in when their tiles are done
//
// Protocol rules kept here (docs/design.md): 2, only own-band tiles wait; 3, a flag is stored with
// release after the chunk's bulk stores have completed; 9, every wait has a deadline.
#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/arrivals_device.cuh"
#include "rowband/engines/cuda/multiplier_device.cuh"
#include "rowband/engines/cuda/sender_device.cuh"

namespace rowband::cuda {
namespace {

// Of depth block k, into a stage's scales: those of the tile's rows, then that of the columns.
__device__ void copy_scales(const FusedArguments& a, const Shared& shared, int stage, int k,
                            int first_row, int first_col) {
  const int lane = threadIdx.x % 32, last = a.order.rows - 1;
  const std::uint32_t to = shared.scales + stage * kStageScaleBytes;
  const float* rows = a.x_scales + k * a.x_scale_block;
#pragma unroll
  for (int i = lane; i < kTileRows; i += 32) {
    ptx::copy_word(to + i * 4, rows + min(first_row + i, last) * a.x_scale_row);
  }
  if (lane == 0) {
    const int col = min(first_col, a.order.cols - 1);
    ptx::copy_word(to + kTileRows * 4,
                   a.w_scales + col / kDepth * a.w_scale_row + k * a.w_scale_block);
  }
}

// By a whole warp, whose first lane speaks to the tensor maps.
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
      if (threadIdx.x % 32 == 0) {
        if (k == 0) {
          ptx::store_shared(shared.tile(slot), {tile.rows.begin, cols, tile.band, tile.chunk});
        }
        const std::uint32_t stage = shared.stages + ring.stage * kStageBytes;
        ptx::barrier_expect(full, kStageBytes);
        ptx::tensor_load_multicast(stage + block * (kRowsBytes / 2), &a.x, k * kDepth, rows, full,
                                   3);
        ptx::tensor_load(stage + kRowsBytes, &a.w, k * kDepth, cols, full);
      }
      copy_scales(a, shared, ring.stage, k, tile.rows.begin, cols);
      ptx::arrive_when_copied(full);
      ring.advance();
    }
    ++slot;
  }
}

// Stream waits have no deadline of their own: a failed call opens them all. What is copied then
// carries no epoch, so no peer takes it for a result.
__device__ void release_copy_queues(const FusedArguments& a) {
  *reinterpret_cast<volatile std::uint32_t*>(a.epoch) = 0;
  __threadfence_system();
  for (int peer = 0; peer < a.world; ++peer) {
    for (int chunk = 0; peer != a.rank && chunk < a.order.chunks; ++chunk) {
      ptx::store_release_system(a.ready[kScatterLeg][peer] + chunk, 1);
      ptx::store_release_system(a.ready[kGatherLeg][peer] + chunk, 1);
    }
  }
}

// The last block to end makes the counters ready for the next call.
__device__ void finish_call(const FusedArguments& a) {
  __threadfence();
  if (atomicAdd(a.blocks_done, 1) + 1 != gridDim.x) return;
  __threadfence();
  if (a.copy_engine && failed(a)) release_copy_queues(a);
  for (int i = 0; i < a.world * a.order.chunks; ++i) {
    a.chunk_done[i] = 0;
    a.chunk_begin[i] = 0;
  }
  *a.widened = 0;
  *a.blocks_done = 0;
  ++*a.calls;
}

// Warps can only take what others of the block gave up of the launch's 168 each (65536 / 384, in
// eights): with more the last to ask would wait for ever.
constexpr int kMultiplierRegisters = 232, kOtherRegisters = 40;
static_assert(kGroups * kMultiplierRegisters + kOtherRegisters <= 3 * 168);

template <bool fp8>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    fused_gemm(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) char raw[];
  const Shared shared(ptx::shared_address(raw));
  if (threadIdx.x == 0) shared.init_barriers();
  ptx::cluster_sync();

  // From a shuffle, so that the compiler knows it to be the same across the warp.
  const int warp = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp >= kGroups * 4) {
    ptx::give_up_registers<kOtherRegisters>();
    if (warp == 8) {
      load_tiles(a, shared);
    } else if (warp < 11) {
      Sender<fp8>(a, shared, warp - 9).run();
    } else {
      if (blockIdx.x == 0) announce_call(a);
      __syncwarp();
      if (!fp8 && blockIdx.x == 0) await_results(a);
      if (fp8) Widener(a).run();
    }
  } else {
    ptx::take_registers<kMultiplierRegisters>();
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
