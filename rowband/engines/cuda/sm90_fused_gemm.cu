// The fused kernel: block-scale fp8 GEMM, scatter, reduce and gather in one persistent grid.
//
// A cluster of two blocks computes one tile of the plan, 192 x 256, at a time; the clusters take
// them in the plan's order. Per block:
//   warps 0 to 11  three groups that multiply (multiplier_device.cuh), 64 x 128 of sums in
//                  registers each: while one adds up a product, the others' keep the tensor cores
//                  busy; under lower tiles, of 128 or 64 rows, two or one
//   warp 12        loads: feeds a ring of stages with operands and their scales; the half of the
//                  rows that it loads goes to both blocks (multicast inside the cluster); in the
//                  cluster's first block it takes the tiles and tells both blocks of them
//   warps 13, 14   senders of the left and of the right pieces of the groups (sender_device.cuh)
//   warp 15        (arrivals_device.cuh) in the grid's first block: announces the call, awaits the
//                  peers' results; in the second: passes on what the copy engine has moved, clears
//                  the next call's tally; with the fp8 wire, in every block: widens what arrives,
//                  and the multiplying warps join in when their tiles are done
//
// Protocol rules kept here (docs/design.md): 2, only own-band tiles wait, and the plan's order has
// all that they wait for ahead of them; 3, a flag is stored with release after the chunk's bulk
// stores have completed; 9, every wait has a deadline.
#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/arrivals_device.cuh"
#include "rowband/engines/cuda/multiplier_device.cuh"
#include "rowband/engines/cuda/sender_device.cuh"

namespace rowband::cuda {
namespace {

// The scales that go with a tile's stages. Few instructions a stage, or the loading warp would be
// what the products wait for.
class ScaleLoader {
 public:
  __device__ ScaleLoader(const FusedArguments& a, int first_row, int first_col)
      : a_(a),
        side_by_side_(a.x_scales + first_row),
        rows_bytes_(a.x_scales_side_by_side ? min(a.order.tile_rows, a.order.rows - first_row) * 4
                                            : 0),
        cols_(a.w_scales + min(first_col, a.order.cols - 1) / kDepth * a.w_scale_row) {
    const int last = a.order.rows - 1;
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      rows_[i] = a.x_scales + min(first_row + 32 * i + lane(), last) * a.x_scale_row;
    }
  }

  // Of a stage, that its barrier expects beside the operands'.
  __device__ int bytes() const { return rows_bytes_; }

  // The next depth block's, into a stage's place for them. Side by side, one lane's bulk copy; else
  // each lane takes every 32nd row's. Of the columns there is one.
  __device__ void copy_next(std::uint32_t to, std::uint32_t barrier) {
    if (rows_bytes_ > 0) {
      if (ptx::elected()) ptx::bulk_load(to, side_by_side_, rows_bytes_, barrier);
      side_by_side_ += a_.x_scale_block;
    } else {
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        if (32 * i < a_.order.tile_rows) ptx::copy_word(to + (32 * i + lane()) * 4, rows_[i]);
        rows_[i] += a_.x_scale_block;
      }
    }
    if (lane() == 0) ptx::copy_word(to + kTileRows * 4, cols_);
    cols_ += a_.w_scale_block;
    ptx::arrive_when_copied(barrier);
  }

 private:
  static constexpr int kShare = kTileRows / 32;
  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  const FusedArguments& a_;
  const float* side_by_side_;
  const int rows_bytes_;
  const float* cols_;
  const float* rows_[kShare];
};

// Which tiles a cluster computes, by one thread of it: the first by the cluster's number, the
// others from a counter, so that a cluster that the link holds up takes fewer; without a counter in
// turn.
class TileSource {
 public:
  __device__ TileSource(const FusedArguments& a, const Shared& shared)
      : a_(a),
        shared_(shared),
        taken_(tally(a, this_call(a)).tiles_taken),
        walk_(a.order, a.mix, a.rank),
        next_(blockIdx.x / 2) {}

  __device__ void take() {
    if (taken_ == nullptr) {
      next_ += clusters();
    } else {
      next_ = clusters() + static_cast<int>(atomicAdd(taken_, 1));
    }
  }
  __device__ void tell(int index) {
    int4 place = {0, 0, -1, 0};
    if (next_ < a_.order.tiles()) {
      const auto tile = walk_.tile(next_);
      place = {tile.rows.begin, tile.cols.begin, tile.band, tile.chunk};
    }
    shared_.tell_tile(index, place);
  }

 private:
  const FusedArguments& a_;
  const Shared& shared_;
  std::uint32_t* const taken_;
  DeviceTileWalk walk_;
  int next_;
};

// From a shuffle, so that the compiler knows it to be the same across the warp, as the tensor loads
// want their arguments.
__device__ int same_in_warp(int n) { return __shfl_sync(0xFFFFFFFFu, n, 0); }
__device__ int4 same_in_warp(const int4& v) {
  return {same_in_warp(v.x), same_in_warp(v.y), same_in_warp(v.z), same_in_warp(v.w)};
}

// By a whole warp, whose first lane knows of the tiles.
__device__ void load_tiles(const FusedArguments& a, const Shared& shared) {
  const int block = same_in_warp(static_cast<int>(ptx::block_of_cluster()));
  const int depth_blocks = static_cast<int>(a.depth / kDepth);
  const bool expects = threadIdx.x % 32 == 0, leads = expects && block == 0;
  const int half_rows = a.order.tile_rows / 2;
  TileSource source(a, shared);
  if (expects) shared.expect_tile(0);
  if (leads) source.tell(0);
  Ring ring;
  for (int index = 0;; ++index) {
    const int4 tile = same_in_warp(shared.await_tile(index));
    if (tile.z < 0) break;
    const int row = tile.x + block * half_rows;
    ScaleLoader scales(a, tile.x, tile.y);
    if (expects) shared.expect_tile(index + 1);
    if (leads) source.take();
#pragma unroll 1
    for (int k = 0; k < depth_blocks; ++k) {
      ptx::barrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
      const std::uint32_t full = shared.full + 8 * ring.stage;
      if (ptx::elected()) {
        const std::uint32_t stage = shared.stages + ring.stage * shared.stage_bytes;
        ptx::barrier_expect(full, 2 * half_rows * kDepth + kColsBytes + scales.bytes());
        ptx::tensor_load_multicast(stage + block * half_rows * kDepth, &a.x, k * kDepth, row, full,
                                   3);
        ptx::tensor_load(stage + shared.rows_bytes, &a.w, k * kDepth, tile.y, full);
      }
      scales.copy_next(shared.scales + ring.stage * kStageScaleBytes, full);
      ring.advance(shared.stage_count);
    }
    if (leads) source.tell(index + 1);
  }
  // A last stage without operands, so that the groups see that there is no tile.
  ptx::barrier_wait(shared.empty + 8 * ring.stage, ring.parity ^ 1);
  if (expects) ptx::barrier_arrive(shared.full + 8 * ring.stage);
  ptx::arrive_when_copied(shared.full + 8 * ring.stage);
}

// Warps can only take what others of the block gave up of the launch's 128 each (65536 / 512): with
// more the last to ask would wait for ever.
constexpr int kMultiplierRegisters = 152, kOtherRegisters = 56;
static_assert(kGroups * kMultiplierRegisters + kOtherRegisters <= (kGroups + 1) * 128);

constexpr int kLoader = kGroups * kGroupThreads / 32;  // this warp, then the senders

template <bool fp8>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kThreads, 1)
    fused_gemm(const __grid_constant__ FusedArguments a) {
  extern __shared__ __align__(1024) char raw[];
  const Shared shared(ptx::shared_address(raw), groups(a));
  if (threadIdx.x == 0) shared.init_barriers(groups(a));
  ptx::cluster_sync();
  cudaGridDependencySynchronize();  // from here on, memory

  const int warp = same_in_warp(static_cast<int>(threadIdx.x / 32));
  if (warp >= kLoader) {
    ptx::give_up_registers<kOtherRegisters>();
    if (warp == kLoader) {
      load_tiles(a, shared);
    } else if (warp <= kLoader + kSenders) {
      Sender<fp8>(a, shared, warp - kLoader - 1).run();
    } else {
      if (blockIdx.x == 0) announce_call(a);
      if (blockIdx.x == 1 && a.copy_engine) pass_on_copies(a);
      if (blockIdx.x == 1) clear(a, tally(a, this_call(a) + 1), threadIdx.x % 32, 32);
      __syncwarp();
      if (!fp8 && blockIdx.x == 0) await_results(a);
      if (fp8) Widener(a).run();
    }
  } else {
    ptx::take_registers<kMultiplierRegisters>();
    if (warp / 4 < groups(a)) Multiplier<fp8>(a, shared, warp / 4).run();
    if (fp8) Widener(a).run();
  }
  __syncwarp();
  ptx::cluster_sync();
  if (threadIdx.x != 0) return;
  if (a.copy_engine) look_for_failures(a);
  ++a.calls[blockIdx.x];
}

}  // namespace

KernelResources fused_kernel_resources(bool fp8_wire) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, fp8_wire ? fused_gemm<true> : fused_gemm<false>),
        "asking for the fused kernel's resources");
  return {attributes.numRegs, attributes.localSizeBytes};
}

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

void launch_fused(const FusedArguments& arguments, int clusters, Start start, cudaStream_t stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(2 * clusters);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = start == Start::kEarly ? 1 : 0;
  const auto kernel = arguments.fp8_wire ? fused_gemm<true> : fused_gemm<false>;
  check(cudaLaunchKernelEx(&config, kernel, arguments), "launching the fused kernel");
}

}  // namespace rowband::cuda
