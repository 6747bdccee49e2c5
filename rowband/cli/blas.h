// OpenBLAS as the peer of the GEMM benchmark. Only in builds that found it.
#pragma once

#include <cstdint>
#include <string>

namespace rowband::cli {

// Its version and the kernels that it chose, or that this build has none. OPENBLAS_CORETYPE in the
// environment forces kernels, which may make it an unfair peer: what it runs has to be shown.
std::string blas_description();

bool have_blas();

// out [rows, cols] = x [rows, depth] * w [cols, depth]^T in fp32, on `threads` threads. Throws
// Error(kUnavailable) without OpenBLAS.
void blas_sgemm(const float* x, const float* w, float* out, std::int64_t rows, std::int64_t cols,
                std::int64_t depth, int threads);

}  // namespace rowband::cli
