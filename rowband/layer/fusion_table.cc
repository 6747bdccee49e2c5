#include "rowband/layer/fusion_table.h"

#include <cmath>

#include "rowband/base/fail.h"

namespace rowband {
namespace {

struct Threshold {
  std::string_view engine;
  Transport transport;
  Wire wire;
  int world;
  std::int64_t cols, depth;  // N, K of one rank
  std::int64_t min_rows;
};

// docs/performance.md has the figures, and the commands that give them anew.
constexpr Threshold kThresholds[] = {
    // Two ranks of one core each, AMD Zen 5: fused / base is 1.14 at M=256, 0.96 to 1.02 at M=512.
    // Below, bands force tiles of half the height, and every weight is widened twice as often.
    {"host", Transport::kDirect, Wire::kBf16, 2, 7168, 2048, 512},
    // Two H200 over NVLink, one rank each, back to back: fused / base is 0.79 to 0.93 for M <= 96,
    // 0.58 at 128 and at most 0.76 above.
    {"cuda", Transport::kDirect, Wire::kBf16, 2, 7168, 2048, 1},
    // 1.09 at M=64, 1.01 at 96, 0.74 at 128, at most 0.82 above.
    {"cuda", Transport::kDirect, Wire::kFp8, 2, 7168, 2048, 128},
    // 1.14 at M=1536, 1.00 at 2048, 0.86 at 3072 and less above.
    {"cuda", Transport::kCopyEngine, Wire::kBf16, 2, 7168, 2048, 3072},
};

double distance(const Threshold& t, const PlanSpec& spec) {
  const auto octaves = [](auto a, auto b) {
    return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
  };
  constexpr double kFar = 1000;  // more octaves than there are
  return (t.transport == spec.transport ? 0 : 2 * kFar) + (t.wire == spec.wire ? 0 : kFar) +
         octaves(t.world, spec.world) + octaves(t.cols, spec.cols) + octaves(t.depth, spec.depth);
}

}  // namespace

std::int64_t measured_min_rows(std::string_view engine, const PlanSpec& spec) {
  const Threshold* nearest = nullptr;
  for (const Threshold& t : kThresholds) {
    if (t.engine != engine) continue;
    if (nearest == nullptr || distance(t, spec) < distance(*nearest, spec)) nearest = &t;
  }
  if (nearest == nullptr) fail(ErrorCode::kInternal, "engine {} was not measured", engine);
  return nearest->min_rows;
}

}  // namespace rowband
