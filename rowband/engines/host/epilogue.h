// What happens to a tile's sums: rounding to partials, the reduce, and the fp8 gather wire's two
// ends. Vectorised with run-time dispatch; every function gives the same bits on every CPU.
#pragma once

#include <cstdint>
#include <span>

#include "rowband/engines/host/tile_gemm.h"
#include "rowband/numerics/types.h"

namespace rowband::host {

// Rounds the sums of a [rows, cols] tile to bf16 at out, `stride` elements between rows; cols is a
// multiple of 8.
void store_partial(const TileScratch& scratch, std::int64_t rows, std::int64_t cols, Bf16* out,
                   std::int64_t stride);

// The reduce of one tile of the own band. partials[r] is the first element of rank r's partial of
// this tile (`stride` elements between rows); the entry of `self` is not read: its partial is the
// sums, rounded to bf16. All are added in fp32 in rank order, then bias (null, or its first element
// for this tile's columns), and rounded once.
void store_reduced(const TileScratch& scratch, std::int64_t rows, std::int64_t cols,
                   std::span<const Bf16* const> partials, int self, const Bf16* bias, Bf16* out,
                   std::int64_t stride);

// The fp8 gather wire: one row of `cols` finished values to codes, with one fp32 scale per `group`
// columns (the last group may be short), by the quantiser's formula.
void encode_row(const Bf16* row, std::int64_t cols, std::int64_t group, E4m3* codes, float* scales);

// The other end: bf16(code * scale).
void decode_row(const E4m3* codes, const float* scales, std::int64_t cols, std::int64_t group,
                Bf16* row);

// Activations, bit-equal to quantize_activations of numerics/quantize.h; depth a multiple of 128,
// dense codes [rows, depth] and scales [rows, depth / 128].
void quantize_rows(const Bf16* x, std::int64_t rows, std::int64_t depth, std::int64_t x_row_stride,
                   bool ue8m0, E4m3* codes, float* scales);

}  // namespace rowband::host
