#include "rowband/numerics/operands.h"

#include <fmt/format.h>

#include <bit>

#include "rowband/numerics/quantize.h"

namespace rowband {
namespace {

// What the two kinds of view have in common, in the words of the messages.
struct View {
  const char* name;
  const E4m3* codes;
  std::int64_t rows;
  std::int64_t depth;
  std::int64_t row_stride;
  const float* scales;
  std::int64_t scale_rows;
  std::int64_t scale_row_stride;
  std::int64_t scale_block_stride;
};

View describe(const ActivationView& x) {
  return {"activation",
          x.codes,
          x.rows,
          x.depth,
          x.row_stride,
          x.scales,
          /*scale_rows=*/x.rows,
          x.scale_row_stride,
          x.scale_block_stride};
}

View describe(const WeightView& w) {
  return {"weight",
          w.codes,
          w.cols,
          w.depth,
          w.row_stride,
          w.scales,
          /*scale_rows=*/scale_blocks(w.cols),
          w.scale_row_stride,
          w.scale_block_stride};
}

// Whether `count` steps of `inner` stay below one step of `outer`; written so that nothing
// overflows.
bool nests(std::int64_t outer, std::int64_t inner, std::int64_t count) {
  return count <= 1 || (outer - 1) / (count - 1) >= inner;
}

std::string why_scale_strides_not_valid(const View& view) {
  const std::int64_t blocks = view.depth / kScaleBlock;
  if (view.scale_row_stride <= 0) {
    return fmt::format("{} scale_row_stride is {}, must be > 0", view.name, view.scale_row_stride);
  }
  if (view.scale_block_stride <= 0) {
    return fmt::format("{} scale_block_stride is {}, must be > 0", view.name,
                       view.scale_block_stride);
  }
  const bool row_major = nests(view.scale_row_stride, view.scale_block_stride, blocks);
  const bool block_major = nests(view.scale_block_stride, view.scale_row_stride, view.scale_rows);
  if (row_major || block_major) return "";
  return fmt::format(
      "{} scales overlap: scale_row_stride {} and scale_block_stride {} do not fit {} rows of {} "
      "blocks; row-major scales have strides {} and 1, block-major ones 1 and {}",
      view.name, view.scale_row_stride, view.scale_block_stride, view.scale_rows, blocks, blocks,
      view.scale_rows);
}

std::string why_storage_not_valid(const View& view) {
  if (view.depth <= 0 || view.depth % kScaleBlock != 0) {
    return fmt::format("{} depth (K) is {}, must be a positive multiple of {}", view.name,
                       view.depth, kScaleBlock);
  }
  if (view.rows == 0) return "";  // nothing is read
  if (view.codes == nullptr) {
    return fmt::format("{} codes are null, must point to {} rows", view.name, view.rows);
  }
  if (view.row_stride < view.depth) {
    return fmt::format("{} row_stride is {}, must be at least the depth, {}", view.name,
                       view.row_stride, view.depth);
  }
  if (view.scales == nullptr) {
    return fmt::format("{} scales are null, must point to {} rows of {} blocks", view.name,
                       view.scale_rows, view.depth / kScaleBlock);
  }
  return why_scale_strides_not_valid(view);
}

// By bits, so that a caller's denormals-are-zero mode does not turn a tiny scale into a bad one.
bool is_finite_and_positive(float value) {
  constexpr std::uint32_t kInfinity = 0x7F800000u;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  return bits != 0 && bits < kInfinity;
}

std::string why_scales_not_valid(const View& view) {
  for (std::int64_t row = 0; row < view.scale_rows; ++row) {
    for (std::int64_t block = 0; block < view.depth / kScaleBlock; ++block) {
      const float scale =
          view.scales[row * view.scale_row_stride + block * view.scale_block_stride];
      if (is_finite_and_positive(scale)) continue;
      return fmt::format("{} scale [{}, {}] is {}, must be finite and > 0", view.name, row, block,
                         scale);
    }
  }
  return "";
}

}  // namespace

std::string why_not_valid(const ActivationView& x) {
  if (x.rows < 0) return fmt::format("activation rows (M) is {}, must be >= 0", x.rows);
  return why_storage_not_valid(describe(x));
}

std::string why_not_valid(const WeightView& w) {
  if (w.cols <= 0 || w.cols % kColsMultiple != 0) {
    return fmt::format("weight cols (N) is {}, must be a positive multiple of {}", w.cols,
                       kColsMultiple);
  }
  return why_storage_not_valid(describe(w));
}

std::string why_scales_not_valid(const ActivationView& x) {
  return why_scales_not_valid(describe(x));
}

std::string why_scales_not_valid(const WeightView& w) { return why_scales_not_valid(describe(w)); }

}  // namespace rowband
