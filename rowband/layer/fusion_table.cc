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
    // Below, bands force tiles of half the height, and every weight is widened twice as often. The
    // fp8 wire, which was not searched for a limit, takes 1.02 to 1.04 from M=512 to 2048.
    {"host", Transport::kDirect, Wire::kBf16, 2, 7168, 2048, 512},
    // Two H200 over NVLink, one rank each, by the sweep over M of docs/performance.md: a limit is
    // one of its M, from which on every ratio fused / base, back to back / single call, is below 1.
    // 0.92 / 0.99 at M=1, 1.003 / 0.99 at 4 (in an earlier sweep 1.02 as a single call at 1); 0.81
    // to 0.97 / 0.89 to 0.96 from 8 to 96, 0.59 / 0.62 at 128, at most 0.71 / 0.80 above.
    {"cuda", Transport::kDirect, Wire::kBf16, 2, 7168, 2048, 8},
    // 1.10 / 1.02 at M=64, 1.03 / 1.01 at 96, 0.76 / 0.71 at 128, at most 0.82 / 0.84 above.
    {"cuda", Transport::kDirect, Wire::kFp8, 2, 7168, 2048, 128},
    // 1.11 / 0.98 at M=1536, 0.99 / 0.88 at 2048, where an earlier sweep had 1.00; 0.84 / 0.79 at
    // 3072 and less above.
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
