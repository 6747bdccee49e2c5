// Random quantised operands in GPU memory, for timing: several sets, so that calls that rotate
// through them find nothing of the last one in the L2 cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rowband/engines/engine.h"

namespace rowband::cli {

class GpuOperands {
 public:
  // For calls of up to `max_rows` rows by a [cols, depth] weight. Two seeds give other operands.
  GpuOperands(Engine& engine, std::int64_t max_rows, std::int64_t cols, std::int64_t depth,
              std::uint64_t seed);

  // How many sets calls of `rows` rows rotate through: past the L2, where there are so many.
  int sets(std::int64_t rows) const;
  // Scales lie [depth / 128][rows], as the engine's quantiser leaves them.
  ActivationView activations(int set, std::int64_t rows) const;
  // Scales lie in rows of a multiple of four, as cuBLASLt wants them.
  WeightView weight(int set) const;

 private:
  struct Set {
    std::shared_ptr<void> x, w, x_scales, w_scales;
  };
  const std::int64_t cols_, depth_;
  std::vector<Set> sets_;
};

}  // namespace rowband::cli
