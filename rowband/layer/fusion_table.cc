#include "rowband/layer/fusion_table.h"

#include <cmath>

#include "rowband/base/fail.h"

namespace rowband {
namespace {

struct Threshold {
  std::string_view engine;
  int world;
  std::int64_t cols, depth;  // N, K of one rank
  std::int64_t min_rows;
};

// docs/performance.md has the figures, and the commands that give them anew.
constexpr Threshold kThresholds[] = {
    // Two ranks of one core each, AMD Zen 5: fused / base is 1.14 at M=256, 0.96 to 1.02 at M=512.
    // Below, bands force tiles of half the height, and every weight is widened twice as often.
    {"host", 2, 7168, 2048, 512},
    // Two H200 over NVLink, one rank each: fused / base is 0.73 back to back and 0.64 in single
    // calls at M=1024, 0.64 and 0.62 at 4096 and 16384. No smaller M was measured.
    {"cuda", 2, 7168, 2048, 1024},
};

double distance(const Threshold& t, int world, std::int64_t cols, std::int64_t depth) {
  const auto octaves = [](auto a, auto b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  return octaves(t.world, world) + octaves(t.cols, cols) + octaves(t.depth, depth);
}

}  // namespace

std::int64_t measured_min_rows(std::string_view engine, int world, std::int64_t cols,
                               std::int64_t depth) {
  const Threshold* nearest = nullptr;
  for (const Threshold& t : kThresholds) {
    if (t.engine != engine) continue;
    if (nearest == nullptr ||
        distance(t, world, cols, depth) < distance(*nearest, world, cols, depth)) {
      nearest = &t;
    }
  }
  if (nearest == nullptr) fail(ErrorCode::kInternal, "engine {} was not measured", engine);
  return nearest->min_rows;
}

}  // namespace rowband
