#include "rowband/engines/cuda/cublas_gemm.h"

#include <array>
#include <initializer_list>
#include <map>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/cublas_library.h"
#include "rowband/numerics/quantize.h"

namespace rowband::cuda {
namespace {

// Owners of cuBLASLt's descriptions.
template <typename T, auto CublasLibrary::*destroy>
struct Destroy {
  using pointer = T;
  void operator()(T t) const { (cublas().*destroy)(t); }
};
template <typename T, auto CublasLibrary::*destroy>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;
using Handle = Owned<cublasLtHandle_t, &CublasLibrary::cublasLtDestroy>;
using Matmul = Owned<cublasLtMatmulDesc_t, &CublasLibrary::cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLibrary::cublasLtMatrixLayoutDestroy>;
using Preference =
    Owned<cublasLtMatmulPreference_t, &CublasLibrary::cublasLtMatmulPreferenceDestroy>;

template <typename T>
void set(const Matmul& matmul, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_cublas(
      cublas().cublasLtMatmulDescSetAttribute(matmul.get(), attribute, &value, sizeof value),
      "an attribute of the matmul");
}

Layout make_layout(cudaDataType type, std::int64_t rows, std::int64_t cols, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  check_cublas(cublas().cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                                   static_cast<std::uint64_t>(cols), stride),
               "a matrix layout");
  return Layout(layout);
}

// The largest power of two up to `most`, which is one, that divides all of them.
std::uint32_t alignment(std::initializer_list<const void*> addresses, std::uintptr_t most) {
  std::uintptr_t bits = most;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

// What the choice of an algorithm looks at, of all the addresses of a kind.
struct Alignments {
  std::uint32_t matrices, scales;
  Alignments(const ActivationView& x, const WeightView& w, const Bf16* out)
      : matrices(alignment({x.codes, w.codes, out}, 256)),
        scales(alignment({x.scales, w.scales}, 256)) {}
};

// out = x * w^T row by row, which cuBLASLt sees as the column-major w * x^T.
struct Plan {
  Matmul matmul;
  Layout w, x, out;
  cublasLtMatmulAlgo_t algorithm{};
  std::string why_not;  // "" when there is an algorithm

  Plan(cublasLtHandle_t handle, const ActivationView& a, const WeightView& b,
       const Alignments& alignments) {
    cublasLtMatmulDesc_t made = nullptr;
    check_cublas(cublas().cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "a matmul");
    matmul.reset(made);
    set(matmul, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(matmul, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    set(matmul, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    point_to_scales(a, b);
    w = make_layout(CUDA_R_8F_E4M3, b.depth, b.cols, b.row_stride);
    x = make_layout(CUDA_R_8F_E4M3, a.depth, a.rows, a.row_stride);
    out = make_layout(CUDA_R_16BF, b.cols, a.rows, b.cols);
    choose(handle, a, b, alignments.matrices);
  }

  void point_to_scales(const ActivationView& a, const WeightView& b) {
    set(matmul, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b.scales);
    set(matmul, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a.scales);
  }

 private:
  void choose(cublasLtHandle_t handle, const ActivationView& a, const WeightView& b,
              std::uint32_t alignment) {
    cublasLtMatmulPreference_t made = nullptr;
    check_cublas(cublas().cublasLtMatmulPreferenceCreate(&made), "a preference");
    const Preference preference(made);
    const std::size_t workspace = CublasGemm::kWorkspaceBytes;
    check_cublas(cublas().cublasLtMatmulPreferenceSetAttribute(
                     made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace),
                 "the workspace's size");
    for (const auto matrix :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      check_cublas(
          cublas().cublasLtMatmulPreferenceSetAttribute(made, matrix, &alignment, sizeof alignment),
          "a matrix's alignment");
    }
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const cublasStatus_t result = cublas().cublasLtMatmulAlgoGetHeuristic(
        handle, matmul.get(), w.get(), x.get(), out.get(), out.get(), made, 1, &found, &count);
    if (result == CUBLAS_STATUS_SUCCESS && count > 0) {
      algorithm = found.algo;
      return;
    }
    why_not = fmt::format("cuBLASLt has no block-scale algorithm for M={} N={} K={}: {}", a.rows,
                          b.cols, a.depth, cublas().cublasLtGetStatusString(result));
  }
};

}  // namespace

struct CublasGemm::State {
  int device;
  std::shared_ptr<void> workspace;
  Handle handle;
  std::map<std::array<std::int64_t, 7>, Plan> plans;  // by shape, row strides and alignments
  Event last_call;                                    // behind the last one that no graph took
  cudaStream_t last_stream = nullptr;                 // its stream

  Plan& plan(const ActivationView& x, const WeightView& w, const Bf16* out) {
    const Alignments alignments(x, w, out);
    const std::array<std::int64_t, 7> key = {x.rows,           w.cols,       x.depth,
                                             x.row_stride,     w.row_stride, alignments.matrices,
                                             alignments.scales};
    return plans.try_emplace(key, handle.get(), x, w, alignments).first->second;
  }
};

std::string why_no_cublas() {
  try {
    cublas();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string cublas_version() {
  if (!why_no_cublas().empty()) return "";
  const std::size_t version = cublas().cublasLtGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

CublasGemm::CublasGemm(int device, std::shared_ptr<void> workspace)
    : state_(std::make_unique<State>()) {
  const DeviceScope scope(device);
  state_->device = device;
  state_->workspace = std::move(workspace);
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublas().cublasLtCreate(&handle), "cublasLtCreate");
  state_->handle.reset(handle);
  state_->last_call = make_event();
}

CublasGemm::~CublasGemm() = default;

std::string CublasGemm::why_not(const ActivationView& x, const WeightView& w, const Bf16* out) {
  if (x.rows == 0) return "M=0: nothing to multiply";
  if (x.scale_row_stride != 1 || x.scale_block_stride != x.rows) {
    return fmt::format("cuBLASLt wants x's scales [K/128][M]; their strides are {} and {}",
                       x.scale_row_stride, x.scale_block_stride);
  }
  const std::int64_t padded = (w.depth / kScaleBlock + 3) / 4 * 4;
  if (w.scale_block_stride != 1 || w.scale_row_stride != padded) {
    return fmt::format("cuBLASLt wants w's scales in rows of {}; their strides are {} and {}",
                       padded, w.scale_row_stride, w.scale_block_stride);
  }
  const DeviceScope scope(state_->device);
  return state_->plan(x, w, out).why_not;
}

void CublasGemm::run(const ActivationView& x, const WeightView& w, Bf16* out, cudaStream_t stream) {
  if (const auto why = why_not(x, w, out); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  const DeviceScope scope(state_->device);
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &captured), "asking whether the stream is captured");
  const bool queued = captured == cudaStreamCaptureStatusNone;
  // The workspace is one call's at a time.
  if (queued && stream != state_->last_stream) {
    check(cudaStreamWaitEvent(stream, state_->last_call.get()), "following the last call");
  }
  Plan& plan = state_->plan(x, w, out);
  plan.point_to_scales(x, w);
  const float one = 1, zero = 0;
  check_cublas(cublas().cublasLtMatmul(state_->handle.get(), plan.matmul.get(), &one, w.codes,
                                       plan.w.get(), x.codes, plan.x.get(), &zero, out,
                                       plan.out.get(), out, plan.out.get(), &plan.algorithm,
                                       state_->workspace.get(), kWorkspaceBytes, stream),
               "cublasLtMatmul");
  if (!queued) return;
  check(cudaEventRecord(state_->last_call.get(), stream), "marking the call's end");
  state_->last_stream = stream;
}

}  // namespace rowband::cuda
