// What tests do on the GPU itself, in the order of a stream: filling operands, checking results.
// Nothing here copies or waits, so that calls stay back to back.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "rowband/numerics/types.h"

namespace rowband::cuda {

// Loads every kernel of this file for the current device, before any call waits for a peer.
void load_test_kernels();

// What a check found; lies in device memory, zero at first.
struct Findings {
  unsigned long long count;  // of wrong elements
  long long call, index;     // of one of them
  float got, want;
};

// codes [rows, depth]: exact_x of `rank` and `call`.
void fill_exact(E4m3* codes, std::int64_t rows, std::int64_t depth, int rank, std::int64_t call,
                cudaStream_t stream);
// y [rows, cols] against the sum over `world` ranks of exact operands.
void check_exact(const Bf16* y, std::int64_t rows, std::int64_t cols, std::int64_t depth, int world,
                 std::int64_t call, Findings* findings, cudaStream_t stream);

// Any finite code; scales from 1/448 up to twice that.
void fill_random(E4m3* codes, std::int64_t count, std::uint64_t seed, cudaStream_t stream);
void fill_random(float* scales, std::int64_t count, std::uint64_t seed, cudaStream_t stream);

// sum = the partials of `world` ranks (at most 8), added in fp32 in rank order and rounded once.
void add_partials(const Bf16* const* partials, int world, std::int64_t count, Bf16* sum,
                  cudaStream_t stream);

// Every 128 columns of a row of y, as they come over the fp8 wire: what their codes say.
void encode_and_widen(Bf16* y, std::int64_t rows, std::int64_t cols, cudaStream_t stream);

// Of every bf16 up to `amax`, which makes an ordinary block: ordinary_codes against e4m3_codes.
void check_ordinary_codes(float amax, Findings* findings, cudaStream_t stream);

// Of all pairs of bf16: sum_of_two against the sum in fp32, rounded.
void check_sums_of_two(Findings* findings, cudaStream_t stream);

// Of `warps` times 1024 bf16 values, a warp's each: packed and unpacked against themselves, and
// whether they were packed exactly if their exponents, but those of zeros and subnormals, lie
// within 15 or reach no higher than 15. Counts the packed ones in *packed.
void check_packing(const std::uint32_t* pairs, std::int64_t warps, Findings* findings,
                   unsigned long long* packed, cudaStream_t stream);

// Bytes that differ, and bytes that are not `value`.
void check_equal(const void* a, const void* b, std::size_t bytes, Findings* findings,
                 cudaStream_t stream);
void check_bytes(const void* a, std::uint8_t value, std::size_t bytes, Findings* findings,
                 cudaStream_t stream);

// Adds a digest of the bytes, which depends on where each lies, to *digest.
void add_digest(const void* a, std::size_t bytes, unsigned long long* digest, cudaStream_t stream);

}  // namespace rowband::cuda
