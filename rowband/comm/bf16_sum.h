// The base path's reduction: the same bits as the op's own reduce.
#pragma once

#include <cstdint>
#include <span>

#include "rowband/numerics/types.h"

namespace rowband::comm {

// The slice of `count` elements that `rank` of `size` reduces; slices start on cache lines of an
// aligned buffer, cover everything once, and may be empty.
struct Slice {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};
Slice slice_of(int rank, int size, std::int64_t count);

// out[i] = bf16(sources[0][i] + sources[1][i] + ...), fp32 adds in the order of `sources`, rounded
// once. `out` may be one of the sources, exactly; it may not overlap one in part. Vectorised for
// the CPU that it runs on; the bits are the same on all of them.
void sum_bf16(std::span<const Bf16* const> sources, std::int64_t count, Bf16* out);

}  // namespace rowband::comm
