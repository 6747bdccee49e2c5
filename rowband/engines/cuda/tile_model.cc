#include "rowband/engines/cuda/tile_model.h"

#include <fmt/format.h>

#include "rowband/engines/cuda/kernels.h"

namespace rowband::cuda {
namespace {

constexpr double kClusters = 66;
constexpr double kFlopsPerUs = 1.1e9, kStoredBytesPerUs = 355e3;  // of a GPU
constexpr double kLongProducts = 1.6;  // times the way out; beyond it there is time to wait

}  // namespace

TileTimes tile_times(const PlanSpec& spec) {
  const double tile = kTileRows * kTileCols;
  return {.products_us = 2 * tile * static_cast<double>(spec.depth) * kClusters / kFlopsPerUs,
          .leaving_us = tile * sizeof(Bf16) * kClusters / kStoredBytesPerUs};
}

bool whole_tile_out(const PlanSpec& spec) {
  if (spec.world == 1 || spec.transport != Transport::kDirect) return false;
  const TileTimes times = tile_times(spec);
  return times.products_us < kLongProducts * times.leaving_us;
}

std::string pipeline_text(const PlanSpec& spec) {
  const TileTimes times = tile_times(spec);
  return fmt::format(
      "{} x {} tiles, each by a cluster of two SMs: {:.0f} us of products, {:.0f} us to leave; {}",
      kTileRows, kTileCols, times.products_us, times.leaving_us,
      whole_tile_out(spec) ? "3 stages for operands, a whole tile on its way out"
                           : "4 stages for operands, half a tile on its way out");
}

}  // namespace rowband::cuda
