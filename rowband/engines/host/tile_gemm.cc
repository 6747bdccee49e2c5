#include "rowband/engines/host/tile_gemm.h"

#include <cstdlib>
#include <new>

#include "rowband/base/fail.h"
#include "rowband/numerics/quantize.h"

namespace rowband::host {
namespace {

void* allocate(std::size_t bytes) {
  void* p = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (p == nullptr) fail(ErrorCode::kOutOfMemory, "tile scratch of {} bytes", bytes);
  return p;
}

}  // namespace

void TileScratch::Free::operator()(void* p) const { std::free(p); }

TileScratch::TileScratch()
    : sums_(static_cast<float*>(allocate(kMaxTileRows * kMaxTileCols * sizeof(float)))),
      activations_(allocate(kMaxTileRows * kScaleBlock * sizeof(float))),
      weights_(allocate(kPanelCols * kScaleBlock * sizeof(float))) {}

std::vector<TileGemm> supported_tile_gemms() {
  std::vector<TileGemm> kernels;
  if (TileGemmFunction run = avx512_bf16_tile_gemm()) kernels.push_back({"avx512_bf16", run});
  for (const TileGemm& kernel : highway_tile_gemms()) kernels.push_back(kernel);
  return kernels;
}

TileGemm find_tile_gemm(const std::string& name) {
  std::string legal;
  for (const TileGemm& kernel : supported_tile_gemms()) {
    if (name.empty() || kernel.name == name) return kernel;
    legal += fmt::format("{}'{}'", legal.empty() ? "" : ", ", kernel.name);
  }
  fail(ErrorCode::kInvalidArgument, "GEMM kernel '{}': this CPU runs {}", name, legal);
}

}  // namespace rowband::host
