#include "rowband/numerics/reference.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/numerics/float_environment.h"
#include "rowband/numerics/quantize.h"
#include "rowband/numerics/strict_float.h"

namespace rowband {
namespace {

// A product of two codes is a multiple of 2^-18 below 2^18, so a sum over a 128-deep block of them
// is exact in double, in any order. A product of two fp32 scales is exact as well. What is left to
// round is one product and one addition per block.

constexpr std::int64_t kTileRows = 4;
constexpr std::int64_t kTileCols = 4;
constexpr std::int64_t kTaskRows = 64;           // rows of one task
constexpr std::int64_t kTaskCols = kScaleBlock;  // columns of one task: one row of weight blocks
static_assert(kTaskRows % kTileRows == 0 && kTaskCols % kTileCols == 0);

using Tile = std::array<std::array<double, kTileCols>, kTileRows>;

// One K block of a task's operands as doubles, in the order in which multiply_tile() reads them.
// Rows and columns past the end of the operand are zeros.
struct Panels {
  std::array<std::array<std::array<double, kTileRows>, kScaleBlock>, kTaskRows / kTileRows> x;
  std::array<std::array<std::array<double, kTileCols>, kScaleBlock>, kTaskCols / kTileCols> w;
};

const std::array<double, 256>& code_values() {
  static const std::array<double, 256> values = [] {
    std::array<double, 256> table{};
    for (std::size_t bits = 0; bits < table.size(); ++bits) {
      table[bits] = to_float(E4m3{static_cast<std::uint8_t>(bits)});
    }
    return table;
  }();
  return values;
}

// row_of(i) points to the 128 codes of panel row i < rows.
template <typename Panel, typename RowOf>
void fill_panel(Panel& panel, std::int64_t rows, RowOf row_of) {
  const std::array<double, 256>& values = code_values();
  const std::int64_t width = std::ssize(panel[0][0]);
  for (std::int64_t row = 0; row < std::ssize(panel) * width; ++row) {
    auto& group = panel[row / width];
    const E4m3* codes = row < rows ? row_of(row) : nullptr;
    for (std::int64_t k = 0; k < kScaleBlock; ++k) {
      group[k][row % width] = codes == nullptr ? 0.0 : values[codes[k].bits];
    }
  }
}

Tile multiply_tile(const std::array<std::array<double, kTileRows>, kScaleBlock>& x,
                   const std::array<std::array<double, kTileCols>, kScaleBlock>& w) {
  Tile sum{};
  for (std::int64_t k = 0; k < kScaleBlock; ++k) {
    for (std::int64_t i = 0; i < kTileRows; ++i) {
      for (std::int64_t j = 0; j < kTileCols; ++j) sum[i][j] += x[k][i] * w[k][j];
    }
  }
  return sum;
}

class Reference {
 public:
  Reference(std::span<const ActivationView> xs, std::span<const WeightView> ws, const Bf16* bias,
            std::span<const std::int64_t> rows_wanted)
      : xs_(xs), ws_(ws), bias_(bias), rows_wanted_(rows_wanted), cols_(ws.front().cols) {
    result_.resize(rows_wanted.size() * static_cast<std::size_t>(cols_));
  }

  // The result does not depend on how many threads share the tasks.
  std::vector<double> compute(int threads) {
    const std::int64_t workers = std::min<std::int64_t>(threads, tasks());
    std::vector<Panels> panels(static_cast<std::size_t>(workers));
    {
      std::vector<std::jthread> others;  // joined at the end of this scope
      for (std::int64_t i = 1; i < workers; ++i) {
        others.emplace_back([this, &own = panels[i]] { work(own); });
      }
      if (workers > 0) work(panels[0]);
    }
    return std::move(result_);
  }

 private:
  std::int64_t col_blocks() const { return scale_blocks(cols_); }
  std::int64_t tasks() const {
    return (std::ssize(rows_wanted_) + kTaskRows - 1) / kTaskRows * col_blocks();
  }

  void work(Panels& panels) {
    const ScopedFloatEnvironment ieee;
    for (;;) {
      const std::int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks()) return;
      compute_task(task / col_blocks() * kTaskRows, task % col_blocks(), panels);
    }
  }

  void compute_task(std::int64_t first_row, std::int64_t col_block, Panels& panels) {
    const std::int64_t rows = std::min(kTaskRows, std::ssize(rows_wanted_) - first_row);
    const std::int64_t first_col = col_block * kTaskCols;
    const std::int64_t cols = std::min(kTaskCols, cols_ - first_col);
    for (std::size_t rank = 0; rank < xs_.size(); ++rank) {
      const ActivationView& x = xs_[rank];
      const WeightView& w = ws_[rank];
      for (std::int64_t block = 0; block < x.depth / kScaleBlock; ++block) {
        const std::int64_t k = block * kScaleBlock;
        fill_panel(panels.x, rows, [&](std::int64_t i) {
          return x.codes + rows_wanted_[first_row + i] * x.row_stride + k;
        });
        fill_panel(panels.w, cols,
                   [&](std::int64_t j) { return w.codes + (first_col + j) * w.row_stride + k; });
        std::array<double, kTaskRows> scales;
        const double weight_scale =
            w.scales[col_block * w.scale_row_stride + block * w.scale_block_stride];
        for (std::int64_t i = 0; i < rows; ++i) {
          scales[i] = weight_scale * x.scales[rows_wanted_[first_row + i] * x.scale_row_stride +
                                              block * x.scale_block_stride];
        }
        add_block(panels, scales, first_row, rows, first_col, cols);
      }
    }
    if (bias_ != nullptr) add_bias(first_row, rows, first_col, cols);
  }

  void add_block(const Panels& panels, const std::array<double, kTaskRows>& scales,
                 std::int64_t first_row, std::int64_t rows, std::int64_t first_col,
                 std::int64_t cols) {
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      for (std::int64_t col = 0; col < cols; col += kTileCols) {
        const Tile sum = multiply_tile(panels.x[row / kTileRows], panels.w[col / kTileCols]);
        for (std::int64_t i = 0; i < std::min(kTileRows, rows - row); ++i) {
          double* out = result_row(first_row + row + i) + first_col + col;
          for (std::int64_t j = 0; j < std::min(kTileCols, cols - col); ++j) {
            out[j] += scales[row + i] * sum[i][j];
          }
        }
      }
    }
  }

  void add_bias(std::int64_t first_row, std::int64_t rows, std::int64_t first_col,
                std::int64_t cols) {
    for (std::int64_t row = first_row; row < first_row + rows; ++row) {
      for (std::int64_t col = first_col; col < first_col + cols; ++col) {
        result_row(row)[col] += to_float(bias_[col]);
      }
    }
  }

  double* result_row(std::int64_t row) { return result_.data() + row * cols_; }

  std::span<const ActivationView> xs_;
  std::span<const WeightView> ws_;
  const Bf16* bias_;
  std::span<const std::int64_t> rows_wanted_;
  std::int64_t cols_;
  std::vector<double> result_;
  std::atomic<std::int64_t> next_task_{0};
};

void check_rank(std::size_t rank, const ActivationView& x, const WeightView& w,
                const ActivationView& first_x, const WeightView& first_w) {
  for (const std::string& why : {why_not_valid(x), why_not_valid(w)}) {
    if (!why.empty()) fail(ErrorCode::kInvalidArgument, "rank {}: {}", rank, why);
  }
  if (x.depth != w.depth) {
    fail(ErrorCode::kInvalidArgument,
         "rank {}: activation depth is {} and weight depth is {}, they must be equal", rank,
         x.depth, w.depth);
  }
  if (x.rows != first_x.rows) {
    fail(ErrorCode::kInvalidArgument, "rank {}: activation rows is {}, must be {} as on rank 0",
         rank, x.rows, first_x.rows);
  }
  if (w.cols != first_w.cols) {
    fail(ErrorCode::kInvalidArgument, "rank {}: weight cols is {}, must be {} as on rank 0", rank,
         w.cols, first_w.cols);
  }
}

void check_arguments(std::span<const ActivationView> xs, std::span<const WeightView> ws,
                     std::span<const std::int64_t> rows_wanted, int threads) {
  if (xs.empty() || xs.size() != ws.size()) {
    fail(ErrorCode::kInvalidArgument,
         "{} activation views and {} weight views, must be one of each per rank", xs.size(),
         ws.size());
  }
  if (threads < 1) fail(ErrorCode::kInvalidArgument, "threads is {}, must be >= 1", threads);
  for (std::size_t rank = 0; rank < xs.size(); ++rank) {
    check_rank(rank, xs[rank], ws[rank], xs[0], ws[0]);
  }
  for (std::size_t i = 0; i < rows_wanted.size(); ++i) {
    if (rows_wanted[i] < 0 || rows_wanted[i] >= xs[0].rows) {
      fail(ErrorCode::kInvalidArgument, "rows_wanted[{}] is {}, must be in [0, {})", i,
           rows_wanted[i], xs[0].rows);
    }
  }
}

double widen(double value) { return value; }
double widen(Bf16 value) { return to_float(value); }

template <typename T>
double relative_l2_of(std::span<const Bf16> got, std::span<const T> want) {
  if (got.size() != want.size()) {
    fail(ErrorCode::kInvalidArgument, "cannot compare {} values with {}: sizes must be equal",
         got.size(), want.size());
  }
  const ScopedFloatEnvironment ieee;
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double expected = widen(want[i]);
    const double error = widen(got[i]) - expected;
    difference += error * error;
    norm += expected * expected;
  }
  // Written to memory inside the scope, see ScopedFloatEnvironment.
  const volatile double ratio =
      difference == 0.0 && norm == 0.0 ? 0.0 : std::sqrt(difference) / std::sqrt(norm);
  return ratio;
}

}  // namespace

std::vector<double> reference_rows(std::span<const ActivationView> xs,
                                   std::span<const WeightView> ws, const Bf16* bias,
                                   std::span<const std::int64_t> rows_wanted, int threads) {
  check_arguments(xs, ws, rows_wanted, threads);
  return Reference(xs, ws, bias, rows_wanted).compute(threads);
}

double relative_l2(std::span<const Bf16> got, std::span<const double> want) {
  return relative_l2_of(got, want);
}

double relative_l2(std::span<const Bf16> got, std::span<const Bf16> want) {
  return relative_l2_of(got, want);
}

}  // namespace rowband
