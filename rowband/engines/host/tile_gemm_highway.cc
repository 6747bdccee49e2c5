// The kernel for every other CPU: both operands widened to fp32, multiplied by fused multiply-adds
// of whatever vectors the CPU has.
#include "rowband/engines/host/tile_gemm.h"

#if defined(__aarch64__)  // sizeless vectors cannot stand in the arrays of sums below
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rowband/engines/host/tile_gemm_highway.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Compiled once per target from here on.
#include "hwy/highway.h"

#include <algorithm>
#include <cstring>

#include "rowband/numerics/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace rowband::host {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

const hn::CappedTag<float, 16> df;
using V = hn::Vec<decltype(df)>;
constexpr int kMicroRows = 6;  // 6 x 2 registers of sums leave room for the operands in 16

// e4m3 to fp32: the exponent and mantissa bits, shifted into place, are the value times 2^-120
// (subnormals included); one exact multiplication puts that right.
void widen(const E4m3* codes, std::int64_t count, float* out) {
  const hn::Rebind<std::uint32_t, decltype(df)> du32;
  const hn::Rebind<std::uint8_t, decltype(df)> du8;
  const V rebias = hn::Set(df, 0x1p120f), nan = hn::NaN(df);
  const auto magnitude_mask = hn::Set(du32, 0x7F);
  for (std::int64_t i = 0; i < count; i += static_cast<std::int64_t>(hn::Lanes(df))) {
    const auto code =
        hn::PromoteTo(du32, hn::LoadU(du8, reinterpret_cast<const std::uint8_t*>(codes + i)));
    const auto magnitude = hn::And(code, magnitude_mask);
    const V value = hn::Mul(hn::BitCast(df, hn::ShiftLeft<20>(magnitude)), rebias);
    const auto is_nan = hn::RebindMask(df, hn::Eq(magnitude, magnitude_mask));
    const V sign = hn::BitCast(df, hn::ShiftLeft<24>(hn::AndNot(magnitude_mask, code)));
    hn::StoreU(hn::Or(hn::IfThenElse(is_nan, nan, value), sign), df, out + i);
  }
}

// [128][32]; columns past `cols` are zero.
void widen_weights(const E4m3* codes, std::int64_t stride, std::int64_t cols, float* out) {
  HWY_ALIGN float row[kScaleBlock];
  for (std::int64_t col = 0; col < kPanelCols; ++col) {
    if (col < cols) {
      widen(codes + col * stride, kScaleBlock, row);
    } else {
      std::memset(row, 0, sizeof row);
    }
    for (std::int64_t k = 0; k < kScaleBlock; ++k) out[k * kPanelCols + col] = row[k];
  }
}

// sums[rows][two vectors] += scale * (activations[rows][128] * weights[128][two vectors])
template <int rows>
void multiply_block(const float* activations, const float* weights, const float* scales,
                    float* sums) {
  const std::size_t lanes = hn::Lanes(df);
  V left[rows], right[rows];
  for (int i = 0; i < rows; ++i) left[i] = right[i] = hn::Zero(df);
  for (std::int64_t k = 0; k < kScaleBlock; ++k) {
    const V w0 = hn::LoadU(df, weights + k * kPanelCols);
    const V w1 = hn::LoadU(df, weights + k * kPanelCols + lanes);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const V x = hn::Set(df, activations[i * kScaleBlock + k]);
      left[i] = hn::MulAdd(x, w0, left[i]);
      right[i] = hn::MulAdd(x, w1, right[i]);
    }
  }
  for (int i = 0; i < rows; ++i) {
    const V scale = hn::Set(df, scales[i]);
    float* at = sums + i * kPanelCols;
    hn::StoreU(hn::MulAdd(left[i], scale, hn::LoadU(df, at)), df, at);
    hn::StoreU(hn::MulAdd(right[i], scale, hn::LoadU(df, at + lanes)), df, at + lanes);
  }
}

using BlockFunction = void (*)(const float*, const float*, const float*, float*);
constexpr BlockFunction kShortBlocks[kMicroRows] = {nullptr,           multiply_block<1>,
                                                    multiply_block<2>, multiply_block<3>,
                                                    multiply_block<4>, multiply_block<5>};

void run(const ActivationView& x, const WeightView& w, Range rows, Range cols,
         TileScratch& scratch) {
  auto* activations = static_cast<float*>(scratch.activations());
  auto* weights = static_cast<float*>(scratch.weights());
  const std::int64_t height = rows.size(), panels = (cols.size() + kPanelCols - 1) / kPanelCols;
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(df));
  std::memset(scratch.sums(), 0,
              static_cast<std::size_t>(panels * height * kPanelCols) * sizeof(float));

  for (std::int64_t block = 0; block < x.depth / kScaleBlock; ++block) {
    const std::int64_t k = block * kScaleBlock;
    float row_scales[kMaxTileRows];
    gather_row_scales(x, rows, block, row_scales);
    for (std::int64_t r = 0; r < height; ++r) {
      widen(x.codes + (rows.begin + r) * x.row_stride + k, kScaleBlock,
            activations + r * kScaleBlock);
    }
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t col = cols.begin + panel * kPanelCols;
      widen_weights(w.codes + col * w.row_stride + k, w.row_stride,
                    std::min(kPanelCols, cols.end - col), weights);
      const float panel_scale = col_scale(w, col, block);
      float scales[kMaxTileRows];
      for (std::int64_t r = 0; r < height; ++r) scales[r] = panel_scale * row_scales[r];
      float* sums = scratch.sums() + panel * height * kPanelCols;
      for (std::int64_t r = 0; r < height; r += kMicroRows) {
        const BlockFunction multiply =
            height - r >= kMicroRows ? multiply_block<kMicroRows> : kShortBlocks[height - r];
        for (std::int64_t c = 0; c < kPanelCols; c += step) {
          multiply(activations + r * kScaleBlock, weights + c, scales + r,
                   sums + r * kPanelCols + c);
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rowband::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rowband::host {

HWY_EXPORT(run);

std::vector<TileGemm> highway_tile_gemms() {
  std::vector<TileGemm> kernels;
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {  // best first
#if HWY_TARGETS & (HWY_TARGETS - 1)
    // HWY_DYNAMIC_DISPATCH would give the best one only; this reads the same table for each.
    hwy::ChosenTarget chosen;
    chosen.Update(target);
    kernels.push_back({hwy::TargetName(target), HWY_DISPATCH_TABLE(run)[chosen.GetIndex()]});
#else
    kernels.push_back({hwy::TargetName(target), HWY_STATIC_DISPATCH(run)});
#endif
  }
  return kernels;
}

}  // namespace rowband::host
#endif
