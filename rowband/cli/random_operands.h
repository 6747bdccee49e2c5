// Seeded random operands: pure functions of seed, row and column of the whole layer, so that a rank
// makes its own slice alone and the layer is the same under every W.
#pragma once

#include <cstdint>
#include <vector>

#include "rowband/io/checkpoint.h"
#include "rowband/numerics/types.h"

namespace rowband::cli {

// Columns [depth_begin, depth_begin + depth) of `rows` activation rows, dense; bell-shaped, with a
// magnitude that differs by row. `set` tells apart matrices of one seed.
std::vector<Bf16> random_activations(std::uint64_t seed, int set, std::int64_t rows,
                                     std::int64_t depth_begin, std::int64_t depth);

// The slice of `rank` of a [cols, total_depth] weight, whose scales differ by block and make unit
// inputs give outputs of the order of one. total_depth / world must be a multiple of 128.
Fp8Weight random_weight_slice(std::uint64_t seed, std::int64_t cols, std::int64_t total_depth,
                              int rank, int world);

// Every code is `value`, which e4m3 must hold exactly, and every scale 1.
Fp8Weight constant_weight_slice(float value, std::int64_t cols, std::int64_t total_depth, int rank,
                                int world);

}  // namespace rowband::cli
