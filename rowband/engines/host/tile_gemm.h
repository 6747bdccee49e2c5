// The GEMM of one tile: fp8 codes in, fp32 sums out, each 128-deep block scaled before it is added.
//
// Several kernels share one signature; the best one that this CPU runs is chosen at run time.
// Within a kernel an element's sum is formed in the same order whatever the tile's shape, so a
// row's bits do not depend on M.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/numerics/operands.h"
#include "rowband/numerics/quantize.h"
#include "rowband/plan/plan.h"

namespace rowband::host {

inline constexpr std::int64_t kMaxTileRows = 256;
inline constexpr std::int64_t kMaxTileCols = 256;
inline constexpr std::int64_t kPanelCols = 32;

// One worker's buffers, 64-byte aligned, sized for the largest tile.
class TileScratch {
 public:
  TileScratch();

  // Sums of the last tile: panels of 32 columns, [panel][tile rows][32]; columns past N hold zeros.
  float* sums() { return sums_.get(); }
  const float* sums() const { return sums_.get(); }
  void* activations() { return activations_.get(); }  // [tile rows][128], widened
  void* weights() { return weights_.get(); }          // [128][32], widened and turned

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<float, Free> sums_;
  std::unique_ptr<void, Free> activations_;
  std::unique_ptr<void, Free> weights_;
};

// What every kernel reads of the scales in depth block `block`: of the tile's rows, and of the
// columns of the panel at `col`.
inline void gather_row_scales(const ActivationView& x, Range rows, std::int64_t block,
                              float* scales) {
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    scales[r] = x.scales[(rows.begin + r) * x.scale_row_stride + block * x.scale_block_stride];
  }
}
inline float col_scale(const WeightView& w, std::int64_t col, std::int64_t block) {
  return w.scales[col / kScaleBlock * w.scale_row_stride + block * w.scale_block_stride];
}

using TileGemmFunction = void (*)(const ActivationView& x, const WeightView& w, Range rows,
                                  Range cols, TileScratch& scratch);

struct TileGemm {
  std::string_view name;  // "avx512_bf16", "AVX3", "AVX2", ...
  TileGemmFunction run = nullptr;
};

// The kernels that this CPU runs, best first; never empty.
std::vector<TileGemm> supported_tile_gemms();

// By name; "" takes the best. Throws Error(kInvalidArgument) listing the supported names.
TileGemm find_tile_gemm(const std::string& name);

// The two families; each null where the CPU cannot run it.
TileGemmFunction avx512_bf16_tile_gemm();
std::vector<TileGemm> highway_tile_gemms();

}  // namespace rowband::host
