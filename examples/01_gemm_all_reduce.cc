// 01: one fused GEMM + all-reduce between two ranks, with numbers that can be checked by hand.
//
// Run     build/examples/01_gemm_all_reduce
// Prints  the plan of the call and three rows of the result; row m of the activations holds 1 + m %
//         3 and the weight holds 2 everywhere, so row m of the sum is (1 + m % 3) * 2 * K * W:
//
//           2 ranks, M=100 N=256 K=256 per rank, window 159744 bytes per rank
//           rank 0 owns rows 0..63, rank 1 owns rows 64..99
//           row  0:  1024
//           row  1:  2048
//           row 99:  1024
//           the same on every rank, in every column
//
// What can go wrong
//   invalid argument   N is no multiple of 8, K no multiple of 128, or M beyond max_rows: the
//                      message holds the value and what would be right.
//   disagreement       the ranks passed different options, or a different M: both values are named.
//   out of memory      the window does not fit: the message holds needed and free bytes.
//   deadline, peer lost   a rank did not come, or died: the message names rank, leg and chunk. The
//                      op is poisoned then; every later call fails at once with the same reason.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <vector>

#include "rowband/comm/threads.h"
#include "rowband/engines/engine.h"
#include "rowband/numerics/quantize.h"
#include "rowband/op/gemm_all_reduce.h"

namespace {

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 100, kCols = 256, kDepth = 256;  // M, N, K of one rank

int activation(std::int64_t row) { return 1 + static_cast<int>(row % 3); }

// An fp8 matrix with scales of 1, as a checkpoint and a quantiser would deliver it.
struct Operand {
  std::vector<rowband::E4m3> codes;
  std::vector<float> scales;
};

Operand make_activations() {
  Operand x;
  for (std::int64_t row = 0; row < kRows; ++row) {
    const auto value = static_cast<float>(activation(row));
    x.codes.insert(x.codes.end(), kDepth, rowband::to_e4m3(value));
  }
  x.scales.assign(kRows * rowband::scale_blocks(kDepth), 1.0f);
  return x;
}

Operand make_weight() {
  Operand w;
  w.codes.assign(kCols * kDepth, rowband::to_e4m3(2.0f));
  w.scales.assign(rowband::scale_blocks(kCols) * rowband::scale_blocks(kDepth), 1.0f);
  return w;
}

void check(const rowband::Output& y) {
  for (std::int64_t i = 0; i < y.rows * y.cols; ++i) {
    const auto want = static_cast<float>(activation(i / y.cols) * 2 * kDepth * kRanks);
    if (rowband::to_float(y.data[i]) != want) throw std::runtime_error("a wrong sum");
  }
}

void print(const rowband::GemmAllReduce& op, const rowband::Output& y) {
  std::printf("%d ranks, M=%ld N=%ld K=%ld per rank, window %ld bytes per rank\n", kRanks,
              static_cast<long>(y.rows), static_cast<long>(y.cols), static_cast<long>(kDepth),
              static_cast<long>(op.window_bytes()));
  const rowband::CallPlan plan(op.spec(), y.rows);
  for (int rank = 0; rank < kRanks; ++rank) {
    const rowband::Range band = plan.band(rank);
    std::printf("%srank %d owns rows %ld..%ld", rank == 0 ? "" : ", ", rank,
                static_cast<long>(band.begin), static_cast<long>(band.end - 1));
  }
  std::printf("\n");
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1}, y.rows - 1}) {
    std::printf("row %2ld: %5g\n", static_cast<long>(row),
                static_cast<double>(rowband::to_float(y.data[row * y.cols])));
  }
  std::printf("the same on every rank, in every column\n");
}

// What each rank does; here a thread, elsewhere a process.
void rank_main(rowband::Communicator& comm) {
  rowband::EngineOptions engine_options;
  engine_options.local_ranks = kRanks;  // so that the ranks deal the cores out among them
  engine_options.local_rank = comm.rank();
  const std::shared_ptr<rowband::Engine> engine =
      rowband::make_engine(rowband::EngineKind::kHost, comm.rank(), engine_options);
  rowband::GemmAllReduceOptions options;
  options.max_rows = kRows;
  options.cols = kCols;
  options.depth = kDepth;
  const auto op = rowband::GemmAllReduce::create(comm, engine, options);

  const Operand x = make_activations(), w = make_weight();
  const std::int64_t blocks = rowband::scale_blocks(kDepth);
  const rowband::Output y =
      op->run({x.codes.data(), kRows, kDepth, kDepth, x.scales.data(), blocks, 1},
              {w.codes.data(), kCols, kDepth, kDepth, w.scales.data(), blocks, 1});
  check(y);
  comm.barrier(rowband::Deadline::after(rowband::kDefaultDeadline));
  if (comm.rank() == 0) print(*op, y);
}

}  // namespace

int main() {
  try {
    rowband::run_ranks(kRanks, rank_main);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "01_gemm_all_reduce: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
