// In place of cublas_gemm.cc in builds without cuBLASLt's header, or with one that has no block
// scales.
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/cublas_gemm.h"

namespace rowband::cuda {

struct CublasGemm::State {};

std::string why_no_cublas() { return ROWBAND_WHY_NO_CUBLAS; }
std::string cublas_version() { return ""; }

CublasGemm::CublasGemm(int, std::shared_ptr<void>) {
  fail(ErrorCode::kUnavailable, "{}", why_no_cublas());
}
CublasGemm::~CublasGemm() = default;
std::string CublasGemm::why_not(const ActivationView&, const WeightView&, const Bf16*) {
  return why_no_cublas();
}
void CublasGemm::run(const ActivationView&, const WeightView&, Bf16*, cudaStream_t) {
  fail(ErrorCode::kUnavailable, "{}", why_no_cublas());
}

}  // namespace rowband::cuda
