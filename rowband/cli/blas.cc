#include "rowband/cli/blas.h"

#include "rowband/base/fail.h"

#ifdef ROWBAND_HAVE_OPENBLAS
#include <cblas.h>
#endif

namespace rowband::cli {

#ifdef ROWBAND_HAVE_OPENBLAS

std::string blas_description() {
  return fmt::format("{} running {} kernels", openblas_get_config(), openblas_get_corename());
}

bool have_blas() { return true; }

void blas_sgemm(const float* x, const float* w, float* out, std::int64_t rows, std::int64_t cols,
                std::int64_t depth, int threads) {
  openblas_set_num_threads(threads);
  const auto n = [](std::int64_t value) { return static_cast<blasint>(value); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, n(rows), n(cols), n(depth), 1.0f, x,
              n(depth), w, n(depth), 0.0f, out, n(cols));
}

#else

std::string blas_description() { return "not in this build"; }

bool have_blas() { return false; }

void blas_sgemm(const float*, const float*, float*, std::int64_t, std::int64_t, std::int64_t, int) {
  fail(ErrorCode::kUnavailable, "this build has no OpenBLAS; build with -DROWBAND_OPENBLAS=ON");
}

#endif

}  // namespace rowband::cli
