// A program beside the library: two ranks, one fused call, an answer known to the bit.
#include <rowband/comm/threads.h>
#include <rowband/engines/engine.h>
#include <rowband/numerics/quantize.h>
#include <rowband/op/gemm_all_reduce.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kWorld = 2;
constexpr std::int64_t kRows = 37;
constexpr std::int64_t kCols = 256;
constexpr std::int64_t kDepth = 128;

void multiply(rowband::Communicator& comm) {
  const std::shared_ptr<rowband::Engine> engine = rowband::make_engine(
      rowband::EngineKind::kHost, comm.rank(),
      {.threads = 1, .local_ranks = kWorld, .local_rank = comm.rank(), .gemm_kernel = ""});
  rowband::GemmAllReduceOptions options;
  options.max_rows = kRows;
  options.cols = kCols;
  options.depth = kDepth;
  const auto op = rowband::GemmAllReduce::create(comm, engine, options);

  const std::vector<rowband::E4m3> x(kRows * kDepth, rowband::to_e4m3(1.0f));
  const std::vector<float> x_scales(kRows, 1.0f);
  const std::vector<rowband::E4m3> w(kCols * kDepth, rowband::to_e4m3(2.0f));
  const std::vector<float> w_scales(rowband::scale_blocks(kCols), 1.0f);
  const rowband::Output y = op->run({x.data(), kRows, kDepth, kDepth, x_scales.data(), 1, 1},
                                    {w.data(), kCols, kDepth, kDepth, w_scales.data(), 1, 1});

  const float want = 2.0f * kDepth * kWorld;
  if (y.rows != kRows || y.cols != kCols) throw std::runtime_error("the result has another shape");
  for (std::int64_t i = 0; i < kRows * kCols; ++i) {
    if (rowband::to_float(y.data[i]) != want) {
      throw std::runtime_error("element " + std::to_string(i) + " is " +
                               std::to_string(rowband::to_float(y.data[i])) + ", should be " +
                               std::to_string(want));
    }
  }
}

}  // namespace

int main() {
  try {
    rowband::run_ranks(kWorld, multiply);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::printf("every element is %d\n", static_cast<int>(2 * kDepth * kWorld));
}
