// The fused kernel against what engines run today, on two GPUs of this machine: cuBLASLt's
// block-scale GEMM, then ncclAllReduce. Ranks are threads of this process.
//
//   cuda_fused_benchmark [--rows 16384 ...] [--cols 7168] [--depth 2048] [--chunks 4] [--repeats
//   20]
//
// Every repetition times the arms in turn (A B A B), several calls back to back with operands that
// rotate; the figure is the median over repetitions of the slower rank. A shape whose fused result
// is not the base path's to 1e-3 (relative L2), or that differs between the ranks, prints no time.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <mutex>
#include <random>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/cuda/engine.h"
#include "rowband/numerics/reference.h"
#include "rowband/op/gemm_all_reduce.h"

namespace rowband::cuda {
namespace {

constexpr int kRanks = 2;
constexpr int kOperandSets = 2;  // 16384 x 2048 and 7168 x 2048 codes twice: past the 50 MB L2
constexpr int kCallsPerTiming = 4;
constexpr double kLargestDifference = 1e-3;

void check_cublas(cublasStatus_t result, const char* what) {
  if (result != CUBLAS_STATUS_SUCCESS) {
    fail(ErrorCode::kUnavailable, "{}: cuBLASLt error {}", what, static_cast<int>(result));
  }
}

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    fail(ErrorCode::kUnavailable, "{}: {}", what, ncclGetErrorString(result));
  }
}

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

struct Shape {
  std::int64_t rows, cols, depth;
};

// One set of random operands on the device. Activation scales lie [K/128][M], as cuBLASLt wants
// them.
struct Operands {
  std::shared_ptr<const void> x, w, x_scales, w_scales;

  Operands(Engine& engine, const Shape& s, std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto codes = [&](std::int64_t count) {
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
      for (auto& byte : bytes) {
        byte = static_cast<std::uint8_t>(random());
        if ((byte & 0x7F) > 0x70) byte = 0x30;  // no NaN, and no code above 128
      }
      return engine.upload(bytes.data(), bytes.size());
    };
    const auto scales = [&](std::int64_t count) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = 0.001f * (1 + static_cast<float>(random() % 256) / 256);
      return engine.upload(values.data(), values.size() * sizeof(float));
    };
    x = codes(s.rows * s.depth);
    w = codes(s.cols * s.depth);
    x_scales = scales(s.rows * (s.depth / 128));
    w_scales = scales(scale_blocks(s.cols) * padded_blocks(s));
  }
  // cuBLASLt wants the rows of 128x128 scales padded to four.
  static std::int64_t padded_blocks(const Shape& s) { return (s.depth / 128 + 3) / 4 * 4; }
  ActivationView activations(const Shape& s) const {
    return {static_cast<const E4m3*>(x.get()),         s.rows, s.depth, s.depth,
            static_cast<const float*>(x_scales.get()), 1,      s.rows};
  }
  WeightView weight(const Shape& s) const {
    return {static_cast<const E4m3*>(w.get()),         s.cols,           s.depth, s.depth,
            static_cast<const float*>(w_scales.get()), padded_blocks(s), 1};
  }
};

// out[rows, cols] = x * w^T by cuBLASLt, which sees it as the column-major w * x^T.
class CublasGemm {
 public:
  // `any` operands: the choice of an algorithm wants to see pointers to scales.
  CublasGemm(const Shape& s, const Operands& any) {
    check_cublas(cublasLtCreate(&handle_), "cublasLtCreate");
    check(cudaMalloc(&workspace_, kWorkspace), "the workspace of cuBLASLt");
    check_cublas(cublasLtMatmulDescCreate(&matmul_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "the matmul");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const auto w_mode = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const auto x_mode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    set(CUBLASLT_MATMUL_DESC_TRANSA, transposed);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, w_mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, x_mode);
    const auto u = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
    check_cublas(cublasLtMatrixLayoutCreate(&w_, CUDA_R_8F_E4M3, u(s.depth), u(s.cols), s.depth),
                 "w");
    check_cublas(cublasLtMatrixLayoutCreate(&x_, CUDA_R_8F_E4M3, u(s.depth), u(s.rows), s.depth),
                 "x");
    check_cublas(cublasLtMatrixLayoutCreate(&out_, CUDA_R_16BF, u(s.cols), u(s.rows), s.cols),
                 "out");
    point_to_scales(any);
    cublasLtMatmulPreference_t preference;
    check_cublas(cublasLtMatmulPreferenceCreate(&preference), "the preference");
    check_cublas(
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspace, sizeof kWorkspace),
        "the workspace's size");
    int found = 0;
    check_cublas(cublasLtMatmulAlgoGetHeuristic(handle_, matmul_, w_, x_, out_, out_, preference, 1,
                                                &chosen_, &found),
                 "a block-scale algorithm");
    cublasLtMatmulPreferenceDestroy(preference);
  }
  ~CublasGemm() {
    cudaFree(workspace_);
    for (auto layout : {w_, x_, out_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(matmul_);
    cublasLtDestroy(handle_);
  }
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  void run(const Operands& o, void* out, cudaStream_t stream) {
    point_to_scales(o);
    const float one = 1, zero = 0;
    check_cublas(cublasLtMatmul(handle_, matmul_, &one, o.w.get(), w_, o.x.get(), x_, &zero, out,
                                out_, out, out_, &chosen_.algo, workspace_, kWorkspace, stream),
                 "cublasLtMatmul");
  }

 private:
  void point_to_scales(const Operands& o) {
    const void* w_scales = o.w_scales.get();
    const void* x_scales = o.x_scales.get();
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, w_scales);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x_scales);
  }

  static constexpr std::size_t kWorkspace = 64 << 20;
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    check_cublas(cublasLtMatmulDescSetAttribute(matmul_, attribute, &value, sizeof value),
                 "an attribute of the matmul");
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t w_ = nullptr, x_ = nullptr, out_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
  void* workspace_ = nullptr;
};

enum Arm { kBase, kFused, kOwnGemm, kCublas, kArms };

// One rank of a shape's measurement.
class Rank {
 public:
  Rank(Communicator& comm, ncclComm_t nccl, const Shape& shape, int chunks)
      : comm_(comm),
        nccl_(nccl),
        shape_(shape),
        engine_(make_cuda_engine(engine_options(comm.rank()))),
        op_(GemmAllReduce::create(comm, engine_, op_options(shape, chunks))),
        sets_(make_sets(*engine_, shape, comm.rank())),
        cublas_(shape, sets_[0]) {
    check(cudaSetDevice(comm.rank()), "choosing the device");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    check(cudaMalloc(&out_, bytes()), "the base path's output");
    for (auto* event : {&begin_, &end_}) check(cudaEventCreate(event), "an event");
  }
  ~Rank() {
    cudaStreamSynchronize(stream_);
    comm_.barrier(soon());
    op_.reset();
    cudaFree(out_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(stream_);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  // Relative L2 of the fused result against the base path's; NaN where the ranks' results differ.
  double difference() {
    std::vector<Bf16> base(count()), fused(count());
    call(kBase, 0);
    engine_->download(base.data(), out_, bytes(), stream_);
    comm_.barrier(soon());
    const Output y = op_->run(sets_[0].activations(shape_), sets_[0].weight(shape_), nullptr,
                              nullptr, nullptr, stream_);
    engine_->download(fused.data(), y.data, bytes(), stream_);
    if (!op_->poison().empty()) fail(ErrorCode::kPoisoned, "{}", op_->poison());
    std::uint64_t hash = 14695981039346656037u;
    for (Bf16 value : fused) hash = (hash ^ value.bits) * 1099511628211u;
    std::uint64_t hashes[kRanks];
    comm_.all_gather(&hash, hashes, sizeof hash, soon());
    if (hashes[0] != hashes[1]) return std::numeric_limits<double>::quiet_NaN();
    return relative_l2(fused, base);
  }

  // Microseconds a call, of the slower rank.
  double time(Arm arm) {
    check(cudaStreamSynchronize(stream_), "the stream");
    comm_.barrier(soon());
    check(cudaEventRecord(begin_, stream_), "an event");
    for (int i = 0; i < kCallsPerTiming; ++i) call(arm, i % kOperandSets);
    check(cudaEventRecord(end_, stream_), "an event");
    check(cudaEventSynchronize(end_), "the timed calls");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_), "the time");
    double all[kRanks];
    const double us = 1000.0 * ms / kCallsPerTiming;
    comm_.all_gather(&us, all, sizeof us, soon());
    return *std::max_element(all, all + kRanks);
  }

  std::int64_t fused_calls() const { return op_->calls(); }
  std::string poison() const { return op_->poison(); }

 private:
  static EngineOptions engine_options(int device) {
    EngineOptions options;
    options.device = device;
    return options;
  }
  static GemmAllReduceOptions op_options(const Shape& s, int chunks) {
    GemmAllReduceOptions options;
    options.max_rows = s.rows;
    options.cols = s.cols;
    options.depth = s.depth;
    options.chunks = chunks;
    options.deadline = std::chrono::seconds(20);
    return options;
  }
  static std::vector<Operands> make_sets(Engine& engine, const Shape& shape, int rank) {
    std::vector<Operands> sets;
    for (int i = 0; i < kOperandSets; ++i) {
      sets.emplace_back(engine, shape, static_cast<std::uint32_t>(100 * rank + i));
    }
    return sets;
  }
  std::size_t count() const { return static_cast<std::size_t>(shape_.rows * shape_.cols); }
  std::size_t bytes() const { return count() * sizeof(Bf16); }

  void call(Arm arm, int set) {
    const Operands& o = sets_[static_cast<std::size_t>(set)];
    switch (arm) {
      case kBase:
        cublas_.run(o, out_, stream_);
        check_nccl(ncclAllReduce(out_, out_, count(), ncclBfloat16, ncclSum, nccl_, stream_),
                   "ncclAllReduce");
        break;
      case kFused:
        op_->run(o.activations(shape_), o.weight(shape_), nullptr, nullptr, nullptr, stream_);
        break;
      case kOwnGemm:
        engine_->gemm(o.activations(shape_), o.weight(shape_), nullptr, static_cast<Bf16*>(out_),
                      nullptr, stream_);
        break;
      case kCublas:
        cublas_.run(o, out_, stream_);
        break;
      case kArms:
        break;
    }
  }

  Communicator& comm_;
  ncclComm_t nccl_;
  const Shape shape_;
  std::shared_ptr<Engine> engine_;
  std::unique_ptr<GemmAllReduce> op_;
  const std::vector<Operands> sets_;
  CublasGemm cublas_;
  cudaStream_t stream_ = nullptr;
  void* out_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Shape& shape, int chunks, int repeats, const ncclComm_t* nccl) {
  std::vector<double> times[kArms];
  double difference = 0;
  run_ranks(kRanks, [&](Communicator& comm) {
    check(cudaSetDevice(comm.rank()), "choosing the device");
    Rank rank(comm, nccl[comm.rank()], shape, chunks);
    const double found = rank.difference();
    const std::int64_t before = rank.fused_calls();
    for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up
      for (int arm = 0; arm < kArms; ++arm) {
        const double us = rank.time(static_cast<Arm>(arm));
        if (comm.rank() == 0 && repeat >= 0) times[arm].push_back(us);
      }
    }
    if (!rank.poison().empty()) fail(ErrorCode::kPoisoned, "{}", rank.poison());
    if (rank.fused_calls() - before != kCallsPerTiming * (repeats + 1)) {
      fail(ErrorCode::kInternal, "the fused path did not run every timed call");
    }
    if (comm.rank() == 0) difference = found;
  });
  const auto name = fmt::format("{} x {} x {}", shape.rows, shape.cols, shape.depth);
  if (!(difference <= kLargestDifference)) {
    fmt::print("| {} | {} | wrong: fused differs from base by {:.2e} |\n", name, chunks,
               difference);
    return;
  }
  const double base = median(times[kBase]), fused = median(times[kFused]),
               own = median(times[kOwnGemm]), cublas = median(times[kCublas]);
  fmt::print("| {} | {} | {:.0f} | {:.0f} | {:.3f} | {:.0f} | {:.0f} | {:.3f} | {:.1e} |\n", name,
             chunks, base, fused, fused / base, cublas, own, own / cublas, difference);
}

int run(int argc, char** argv) {
  CLI::App app("The fused kernel against cuBLASLt's block-scale GEMM and ncclAllReduce, W = 2");
  std::vector<std::int64_t> rows = {1024, 4096, 16384}, cols = {7168}, depth = {2048};
  std::vector<int> chunks = {4};
  int repeats = 20;
  app.add_option("--rows", rows, "M, one or more");
  app.add_option("--cols", cols, "N, one or more");
  app.add_option("--depth", depth, "K per rank, one or more");
  app.add_option("--chunks", chunks, "chunks per band, one or more");
  app.add_option("--repeats", repeats, "repetitions a median is over")->check(CLI::Range(5, 1000));
  CLI11_PARSE(app, argc, argv);
  if (device_count() < kRanks) {
    fail(ErrorCode::kUnavailable, "this needs {} GPUs, the process sees {}", kRanks,
         device_count());
  }
  ncclComm_t nccl[kRanks];
  const int devices[kRanks] = {0, 1};
  check_nccl(ncclCommInitAll(nccl, kRanks, devices), "ncclCommInitAll");
  fmt::print(
      "| M x N x K | chunks | base us | fused us | fused / base | cuBLASLt us | own GEMM us |"
      " own / cuBLASLt | rel. L2 to base |\n|---|---|---|---|---|---|---|---|---|\n");
  for (auto n : cols) {
    for (auto k : depth) {
      for (auto m : rows) {
        for (int c : chunks) measure({m, n, k}, c, repeats, nccl);
      }
    }
  }
  for (ncclComm_t comm : nccl) ncclCommDestroy(comm);
  return 0;
}

}  // namespace
}  // namespace rowband::cuda

int main(int argc, char** argv) {
  try {
    return rowband::cuda::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_fused_benchmark: {}\n", error.what());
    return 1;
  }
}
