// cuBLASLt's functions, out of a library that is loaded when it is first asked for. Only for files
// that are compiled when the build has its header, of CUDA 12.9 or newer.
#pragma once

#include <cublasLt.h>

#include <string>

namespace rowband::cuda {

#define ROWBAND_CUBLAS_FUNCTIONS(DO)       \
  DO(cublasLtCreate)                       \
  DO(cublasLtDestroy)                      \
  DO(cublasLtGetVersion)                   \
  DO(cublasLtGetStatusString)              \
  DO(cublasLtMatmul)                       \
  DO(cublasLtMatmulAlgoGetHeuristic)       \
  DO(cublasLtMatmulDescCreate)             \
  DO(cublasLtMatmulDescDestroy)            \
  DO(cublasLtMatmulDescSetAttribute)       \
  DO(cublasLtMatmulPreferenceCreate)       \
  DO(cublasLtMatmulPreferenceDestroy)      \
  DO(cublasLtMatmulPreferenceSetAttribute) \
  DO(cublasLtMatrixLayoutCreate)           \
  DO(cublasLtMatrixLayoutDestroy)

struct CublasLibrary {
// A name that is declared takes no parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define ROWBAND_DECLARE(name) decltype(&::name) name = nullptr;
  ROWBAND_CUBLAS_FUNCTIONS(ROWBAND_DECLARE)
#undef ROWBAND_DECLARE
};

// Throws Error(kUnavailable): no library of the header's major version, one without a function, or
// one without block scales.
const CublasLibrary& cublas();

// Throws Error(kUnavailable) with `what` and the library's own words unless `result` is success.
void check_cublas(cublasStatus_t result, const std::string& what);

}  // namespace rowband::cuda
