#include "rowband/engines/cuda/engine.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <optional>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/all_reduce.h"
#include "rowband/engines/cuda/cublas_gemm.h"
#include "rowband/engines/cuda/fused.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/planner.h"
#include "rowband/engines/cuda/tensor_map.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

constexpr int kMostChunks = 64;

class CudaEngine final : public Engine {
 public:
  // `properties` are those of options.device, a Hopper GPU.
  CudaEngine(const EngineOptions& options, const cudaDeviceProp& properties)
      : Engine(make_cuda_planner({properties.multiProcessorCount, options.device_ranks})),
        device_(options.device),
        device_ranks_(options.device_ranks),
        clusters_(tiles_at_once()),
        start_(options.device_ranks == 1 ? Start::kEarly : Start::kAfterLast),
        name_(properties.name) {
    const DeviceScope scope(device_);
    load_fused_kernel();
    load_quantize_kernel();
    load_bias_kernel();
    stream_ = make_stream();
    keep_freed_memory();
    if (options.gemm_kernel == kCublas) {
      cublas_.emplace(device_, allocate_in_order(CublasGemm::kWorkspaceBytes));
    } else if (!options.gemm_kernel.empty() && options.gemm_kernel != kOwn) {
      fail(ErrorCode::kInvalidArgument, "GEMM kernel '{}' is not one of '{}', '{}'",
           options.gemm_kernel, kOwn, kCublas);
    }
    counters_ = allocate_device(counters_bytes(1, kMostChunks, 2 * clusters_));
    status_ = allocate_pinned(sizeof(Status));
  }

  std::string_view name() const override { return "cuda"; }
  std::string description() const override {
    return fmt::format("cuda engine on GPU {} ({}), {} of its SMs, GEMM kernel {}", device_, name_,
                       2 * clusters_, cublas_ ? kCublas : kOwn);
  }

  // The ranks that share the GPU ask before any of them allocates.
  std::string why_no_room(std::int64_t window_bytes, int world,
                          const FaultHooks* faults) const override {
    const DeviceScope scope(device_);
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free device memory");
    if (faults != nullptr && faults->available_bytes) {
      free = static_cast<std::size_t>(*faults->available_bytes);
    }
    const int sharing = std::min(device_ranks_, world);
    const std::int64_t needed = window_bytes * sharing;
    if (static_cast<std::size_t>(needed) <= free) return "";
    return fmt::format("the window needs {} bytes ({} rank{} x {}), GPU {} has {} bytes free",
                       needed, sharing, sharing == 1 ? "" : "s", window_bytes, device_, free);
  }

  std::unique_ptr<FusedExecutor> make_fused(Communicator& comm, const PlanSpec& spec,
                                            const FusedOptions& options) override {
    return std::make_unique<CudaFused>(comm, spec, options, device_, clusters_, start_,
                                       stream_.get());
  }

  // The fused kernel of a world of one, or cuBLASLt.
  void gemm(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out, Timeline*,
            void* stream) override {
    if (x.rows == 0) return;
    if (const std::string why = why_not_aligned({x, w, bias}); !why.empty()) {
      fail(ErrorCode::kInvalidArgument, "{}", why);
    }
    require_aligned(out);
    const DeviceScope scope(device_);
    if (cublas_ && cublas_->why_not(x, w, out).empty()) {
      cublas_->run(x, w, out, stream_of(stream));
      if (bias != nullptr) launch_add_bias(out, x.rows, w.cols, bias, stream_of(stream));
      return;
    }
    // Chunks of ten tile rows: with more, the tiles at work at one time need more than the L2
    // holds.
    const std::int64_t chunks = std::clamp<std::int64_t>(x.rows / (10 * kTileRows), 1, kMostChunks);
    const PlanSpec spec = with_tiles(
        {.max_rows = x.rows, .cols = w.cols, .depth = w.depth, .chunks = static_cast<int>(chunks)});
    if (const std::string why = why_not_served(spec); !why.empty()) {
      fail(ErrorCode::kInvalidArgument, "{}", why);
    }
    FusedArguments a = call_arguments({x, w, bias, nullptr, stream}, CallPlan(spec, x.rows), 0, 1);
    a.output_at[0] = map_bf16(out, x.rows, w.cols, w.cols, kPieceRows);
    a.blocks = 2 * clusters_;
    point_to_counters(a, counters_.get());
    // Calls on two streams may be at work at one time; what else they count together nobody reads.
    a.tally[0].tiles_taken = a.tally[1].tiles_taken = nullptr;
    a.host_status = static_cast<Status*>(status_.get());
    launch_fused(a, clusters_, start_, stream_of(stream));
  }

  // Scales lie [depth / 128][rows]: the rows of a tile read theirs side by side.
  ActivationView quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                          std::int64_t x_row_stride, ScaleFormat format, E4m3* codes, float* scales,
                          void* stream) override {
    if (depth < kScaleBlock || depth % kScaleBlock != 0) {
      fail(ErrorCode::kInvalidArgument, "depth={}: must be a positive multiple of {}", depth,
           kScaleBlock);
    }
    if (reinterpret_cast<std::uintptr_t>(codes) % 16 != 0) {
      fail(ErrorCode::kInvalidArgument, "activation codes at {}: the GPU needs a multiple of 16",
           static_cast<const void*>(codes));
    }
    const DeviceScope scope(device_);
    launch_quantize(x, rows, depth, x_row_stride, format == ScaleFormat::kUe8m0, codes, scales, 1,
                    rows, stream_of(stream));
    return {codes, rows, depth, depth, scales, 1, rows};
  }

  void add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                void* stream) override {
    require_aligned(out);
    if (cols % 8 != 0) {
      fail(ErrorCode::kInvalidArgument, "N={}: the GPU needs a multiple of 8", cols);
    }
    if (reinterpret_cast<std::uintptr_t>(bias) % sizeof(Bf16) != 0) {
      fail(ErrorCode::kInvalidArgument, "bias at {}: the GPU needs a multiple of 2",
           static_cast<const void*>(bias));
    }
    const DeviceScope scope(device_);
    launch_add_bias(out, rows, cols, bias, stream_of(stream));
  }

  std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Deadline deadline) override {
    return cuda::make_all_reduce(comm, *this, device_, stream_.get(), shared_nccl_, deadline);
  }

  bool on_host() const override { return false; }
  int device() const override { return device_; }
  std::string why_not_reachable(const void* address) const override {
    cudaPointerAttributes found;
    check(cudaPointerGetAttributes(&found, address), "asking what memory an address is");
    if (found.type == cudaMemoryTypeUnregistered) {
      return fmt::format("{} is host memory: the cuda engine works on memory of GPU {}", address,
                         device_);
    }
    if (found.type == cudaMemoryTypeDevice && found.device != device_) {
      return fmt::format("{} is memory of GPU {}: this rank works on GPU {}", address, found.device,
                         device_);
    }
    return "";
  }
  std::size_t output_alignment() const override { return 16; }  // of a bulk tensor store

  std::shared_ptr<void> allocate(std::size_t bytes) override {
    const DeviceScope scope(device_);
    auto memory = allocate_in_order(bytes);
    check(cudaStreamSynchronize(stream_.get()), "waiting for the stream");
    return memory;
  }
  void synchronize(void* stream) override {
    const DeviceScope scope(device_);
    check(cudaStreamSynchronize(stream_of(stream)), "waiting for the stream");
  }
  void finish() override {
    const DeviceScope scope(device_);
    check(cudaDeviceSynchronize(), "waiting for the device");
  }

  std::shared_ptr<const void> upload(const void* host, std::size_t bytes) override {
    const DeviceScope scope(device_);
    auto memory = allocate_in_order(bytes);
    check(cudaStreamSynchronize(stream_.get()), "waiting for the stream");
    check(cudaMemcpyAsync(memory.get(), host, bytes, cudaMemcpyHostToDevice, stream_.get()),
          "copying to the device");
    check(cudaStreamSynchronize(stream_.get()), "waiting for the copy");
    return memory;
  }

  void download(void* host, const void* from, std::size_t bytes, void* stream) override {
    const DeviceScope scope(device_);
    // A copy queued behind a kernel that waits for a peer would hold up the copies of a peer that
    // shares this device, and with them the kernel waited for.
    check(cudaStreamSynchronize(stream_of(stream)), "waiting for the stream");
    check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream)),
          "copying from the device");
    check(cudaStreamSynchronize(stream_of(stream)), "waiting for the stream");
  }

  void copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    const DeviceScope scope(device_);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
          "copying to the device");
  }

 private:
  void require_aligned(const Bf16* out) const {
    if (reinterpret_cast<std::uintptr_t>(out) % output_alignment() == 0) return;
    fail(ErrorCode::kInvalidArgument, "out at {}: the GPU needs a multiple of {}",
         static_cast<const void*>(out), output_alignment());
  }

  // In the order of the engine's stream: cudaMalloc and cudaFree may wait for the whole device, and
  // so, where ranks share one, for a peer's kernel that waits for this rank.
  std::shared_ptr<void> allocate_in_order(std::size_t bytes) const {
    void* memory = nullptr;
    check_allocation(cudaMallocAsync(&memory, std::max<std::size_t>(bytes, 1), stream_.get()),
                     bytes);
    return {memory, [stream = stream_](void* p) { cudaFreeAsync(p, stream.get()); }};
  }

  // Giving memory back to the system would wait for the device.
  void keep_freed_memory() const {
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, device_), "the device's memory pool");
    std::uint64_t everything = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything),
          "keeping freed memory in the pool");
    // Nor may a rank's allocation wait for the stream of another.
    int no = 0;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no),
          "keeping the streams of the pool apart");
  }

  // Ranks of one GPU must not share a stream, so without one a call goes on the engine's own.
  cudaStream_t stream_of(void* given) const {
    return given != nullptr ? static_cast<cudaStream_t>(given) : stream_.get();
  }

  static constexpr const char* kOwn = "wgmma";
  static constexpr const char* kCublas = "cublaslt";

  const int device_;
  const int device_ranks_;
  const int clusters_;  // this rank's share of the device
  const Start start_;   // of its kernels
  const std::string name_;
  std::shared_ptr<CUstream_st> stream_;  // shared with the memory that is freed in its order
  DeviceMemory counters_;                // of gemm's calls
  PinnedMemory status_;
  std::optional<CublasGemm> cublas_;  // when it was asked for
  SharedNccl shared_nccl_;
};

}  // namespace

namespace {

// How many GPUs this process sees, and why when that is none.
struct Seen {
  int count = 0;
  cudaError_t why = cudaSuccess;
};

Seen seen() {
  Seen s;
  s.why = cudaGetDeviceCount(&s.count);
  if (s.why != cudaSuccess) {
    cudaGetLastError();
    s.count = 0;
  }
  return s;
}

}  // namespace

int device_count() { return seen().count; }

bool sees_hopper() {
  for (int device = 0; device < device_count(); ++device) {
    int major = 0, minor = 0;
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "asking for the compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
          "asking for the compute capability");
    if (major == 9 && minor == 0) return true;
  }
  return false;
}

std::string why_not_built_for(const std::string& gpu, int major, int minor) {
  if (major == 9 && minor == 0) return "";
  return fmt::format("{} is sm_{}{}; the kernels are built for sm_90a", gpu, major, minor);
}

std::unique_ptr<Engine> make_cuda_engine(const EngineOptions& options) {
  const auto [count, why] = seen();
  if (count == 0) {
    fail(ErrorCode::kUnavailable,
         "the cuda engine needs a Hopper GPU: this process sees none ({}); CUDA_VISIBLE_DEVICES "
         "may hide it",
         why == cudaSuccess ? "no device" : cudaGetErrorString(why));
  }
  if (options.device < 0 || options.device >= count) {
    fail(ErrorCode::kUnavailable, "device {}: this process sees {} GPU{}", options.device, count,
         count == 1 ? "" : "s");
  }
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, options.device), "reading the device's properties");
  const std::string gpu = fmt::format("GPU {} ({})", options.device, properties.name);
  if (const auto other = why_not_built_for(gpu, properties.major, properties.minor);
      !other.empty()) {
    fail(ErrorCode::kUnavailable, "{}", other);
  }
  return std::make_unique<CudaEngine>(options, properties);
}

}  // namespace rowband::cuda
