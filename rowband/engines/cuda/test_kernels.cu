#include "rowband/engines/cuda/test_kernels.h"

#include <cuda_bf16.h>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/bf16_device.cuh"
#include "rowband/engines/cuda/packed_device.cuh"
#include "rowband/engines/cuda/quantize_device.cuh"
#include "rowband/testing/exact_values.h"

namespace rowband::cuda {
namespace {

constexpr int kThreads = 256;

// Every thread takes every stride-th of `count` elements.
#define ROWBAND_FOR_EACH(i, count)                                                      \
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; \
       i < (count); i += static_cast<std::int64_t>(gridDim.x) * kThreads)

__device__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
  return x ^ (x >> 32);
}

__device__ float value_of(Bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

__device__ void report(Findings* findings, std::int64_t call, std::int64_t index, float got,
                       float want) {
  if (atomicAdd(&findings->count, 1ull) != 0) return;
  findings->call = call;
  findings->index = index;
  findings->got = got;
  findings->want = want;
}

__global__ void fill_exact_kernel(std::uint32_t* codes, std::int64_t rows, std::int64_t row_words,
                                  int rank, std::int64_t call) {
  ROWBAND_FOR_EACH(i, rows * row_words) {
    constexpr std::uint32_t kCodes[4] = {0, 0x38, 0x40, 0x44};  // e4m3: 1, 2, 3
    const std::int64_t row = i / row_words;
    codes[i] = 0x01010101 * (kCodes[exact_digit(rank, row, call)] + 8 * exact_exponent(row, call));
  }
}

__global__ void check_exact_kernel(const Bf16* y, std::int64_t rows, std::int64_t cols,
                                   std::int64_t depth, int world, std::int64_t call,
                                   Findings* findings) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += exact_x(rank, row, call);
    for (std::int64_t col = threadIdx.x; col < cols; col += kThreads) {
      const float want = sum * static_cast<float>(depth * exact_w(col));
      const float got = value_of(y[row * cols + col]);
      if (got != want) report(findings, call, row * cols + col, got, want);
    }
  }
}

__global__ void fill_codes_kernel(E4m3* codes, std::int64_t count, std::uint64_t seed) {
  ROWBAND_FOR_EACH(i, count) {
    const auto bits = static_cast<std::uint8_t>(mixed(seed * 0x1000003 + i));
    codes[i].bits = (bits & 0x7F) == 0x7F ? 0 : bits;  // no NaN
  }
}

__global__ void fill_scales_kernel(float* scales, std::int64_t count, std::uint64_t seed) {
  ROWBAND_FOR_EACH(i, count) {
    scales[i] = (1 + static_cast<float>(mixed(seed * 0x1000033 + i) % 4096) / 4096) / 448;
  }
}

struct Partials {
  const Bf16* of[8];
};

__global__ void add_partials_kernel(Partials partials, int world, std::int64_t count, Bf16* sum) {
  ROWBAND_FOR_EACH(i, count) {
    float total = -0.0f;
    for (int rank = 0; rank < world; ++rank) total += value_of(partials.of[rank][i]);
    const __nv_bfloat16 rounded = __float2bfloat16_rn(total);
    sum[i].bits = __bfloat16_as_ushort(rounded);
  }
}

__global__ void encode_and_widen_kernel(Bf16* y, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t blocks = (cols + kBlock - 1) / kBlock;
  ROWBAND_FOR_EACH(i, rows * blocks) {
    const std::int64_t col = i % blocks * kBlock;
    auto* pairs = reinterpret_cast<std::uint32_t*>(y + i / blocks * cols + col);
    const std::int64_t count = (col + kBlock < cols ? kBlock : cols - col) / 2;
    float amax = 0;
    for (std::int64_t j = 0; j < count; ++j) {
      const float2 values = widened(pairs[j]);
      amax = fmaxf(amax, fmaxf(fabsf(values.x), fabsf(values.y)));
    }
    const float scale = block_scale(amax, false);
    const Division by(scale);
    for (std::int64_t j = 0; j < count; ++j) {
      const float2 values = widened(pairs[j]);
      pairs[j] = widen_codes(e4m3_codes(values.x, values.y, by), scale);
    }
  }
}

__global__ void check_ordinary_codes_kernel(float amax, Findings* findings) {
  const Division by(block_scale(amax, false));
  ROWBAND_FOR_EACH(i, std::int64_t{65536}) {
    const float x = __bfloat162float(__ushort_as_bfloat16(static_cast<unsigned short>(i)));
    if (!(fabsf(x) <= amax)) continue;
    const std::uint32_t got = ordinary_codes(x, -x, by), want = e4m3_codes(x, -x, by);
    if (got != want) {
      report(findings, 0, i, static_cast<float>(got), static_cast<float>(want));
    }
  }
}

__global__ void check_sums_of_two_kernel(Findings* findings) {
  ROWBAND_FOR_EACH(i, std::int64_t{1} << 31) {  // a's whole range by half of b's, twice
    const auto a = static_cast<std::uint32_t>(i & 0xFFFF), b = static_cast<std::uint32_t>(i >> 16);
    const std::uint32_t as = a * 0x10001u, bs = b | (b | 0x8000u) << 16;
    const float2 x = widened(as), y = widened(bs);
    // As the reduce of more than two: from -0, in rank order.
    const __nv_bfloat162 sums = __floats2bfloat162_rn(-0.0f + x.x + y.x, -0.0f + x.y + y.y);
    const auto want = reinterpret_cast<const std::uint32_t&>(sums), got = sum_of_two(as, bs);
    if (got != want) {
      report(findings, 0, i, static_cast<float>(got), static_cast<float>(want));
    }
  }
}

__global__ void check_packing_kernel(const std::uint32_t* pairs, std::int64_t warps,
                                     Findings* findings, unsigned long long* packed) {
  __shared__ alignas(16) char raw[kThreads / 32 * kPlainBytes];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::uint32_t at = ptx::shared_address(raw) + warp * kPlainBytes + lane * 16;
  constexpr std::int64_t kWarps = kThreads / 32;
  for (std::int64_t i = blockIdx.x * kWarps + warp; i < warps; i += gridDim.x * kWarps) {
    std::uint32_t want[kPackedPairs], got[kPackedPairs];
    unsigned most = 0, least = 0xFF;
    for (int j = 0; j < kPackedPairs; ++j) {
      want[j] = pairs[(i * kPackedPairs + j) * 32 + lane];
      for (int half : {7, 23}) {
        const unsigned exponent = want[j] >> half & 0xFF;
        most = max(most, exponent);
        if (exponent > 0) least = min(least, exponent);
      }
    }
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    least = __reduce_min_sync(0xFFFFFFFFu, least);
    const bool packs = most <= 15 || least + 15 > most;
    const std::uint32_t head = packing_head(want);
    if (((head & kHeadPlain) == 0) != packs) report(findings, 0, i * 1024, head, packs);
    __syncwarp();
    store_packed(at, head, want);
    __syncwarp();
    load_packed(at, head, got);
    for (int j = 0; j < kPackedPairs; ++j) {
      if (got[j] != want[j]) {
        report(findings, 1, (i * kPackedPairs + j) * 32 + lane, got[j], want[j]);
      }
    }
    if (lane == 0 && packs) atomicAdd(packed, 1ull);
  }
}

__global__ void check_equal_kernel(const std::uint8_t* a, const std::uint8_t* b, std::int64_t bytes,
                                   Findings* findings) {
  ROWBAND_FOR_EACH(i, bytes) {
    if (a[i] != b[i]) report(findings, 0, i, a[i], b[i]);
  }
}

__global__ void check_bytes_kernel(const std::uint8_t* a, std::uint8_t value, std::int64_t bytes,
                                   Findings* findings) {
  ROWBAND_FOR_EACH(i, bytes) {
    if (a[i] != value) report(findings, 0, i, a[i], value);
  }
}

__global__ void add_digest_kernel(const std::uint8_t* a, std::int64_t bytes,
                                  unsigned long long* digest) {
  unsigned long long sum = 0;
  ROWBAND_FOR_EACH(i, bytes) sum += mixed(static_cast<std::uint64_t>(i) * 257 + a[i]);
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (threadIdx.x % 32 == 0) atomicAdd(digest, sum);
}

int blocks_for(std::int64_t count) {
  const std::int64_t blocks = (count + kThreads - 1) / kThreads;
  return static_cast<int>(blocks < 1024 ? (blocks > 0 ? blocks : 1) : 1024);
}

}  // namespace

void load_test_kernels() {
  cudaFuncAttributes attributes;
  for (const void* kernel : {reinterpret_cast<const void*>(&fill_exact_kernel),
                             reinterpret_cast<const void*>(&check_exact_kernel),
                             reinterpret_cast<const void*>(&fill_codes_kernel),
                             reinterpret_cast<const void*>(&fill_scales_kernel),
                             reinterpret_cast<const void*>(&add_partials_kernel),
                             reinterpret_cast<const void*>(&encode_and_widen_kernel),
                             reinterpret_cast<const void*>(&check_ordinary_codes_kernel),
                             reinterpret_cast<const void*>(&check_sums_of_two_kernel),
                             reinterpret_cast<const void*>(&check_packing_kernel),
                             reinterpret_cast<const void*>(&check_equal_kernel),
                             reinterpret_cast<const void*>(&check_bytes_kernel),
                             reinterpret_cast<const void*>(&add_digest_kernel)}) {
    check(cudaFuncGetAttributes(&attributes, kernel), "loading a test's kernel");
  }
}

void fill_exact(E4m3* codes, std::int64_t rows, std::int64_t depth, int rank, std::int64_t call,
                cudaStream_t stream) {
  fill_exact_kernel<<<blocks_for(rows * depth / 4), kThreads, 0, stream>>>(
      reinterpret_cast<std::uint32_t*>(codes), rows, depth / 4, rank, call);
  check(cudaGetLastError(), "filling operands");
}

void check_exact(const Bf16* y, std::int64_t rows, std::int64_t cols, std::int64_t depth, int world,
                 std::int64_t call, Findings* findings, cudaStream_t stream) {
  check_exact_kernel<<<blocks_for(rows * kThreads), kThreads, 0, stream>>>(y, rows, cols, depth,
                                                                           world, call, findings);
  check(cudaGetLastError(), "checking a result");
}

void fill_random(E4m3* codes, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_codes_kernel<<<blocks_for(count), kThreads, 0, stream>>>(codes, count, seed);
  check(cudaGetLastError(), "filling codes");
}

void fill_random(float* scales, std::int64_t count, std::uint64_t seed, cudaStream_t stream) {
  fill_scales_kernel<<<blocks_for(count), kThreads, 0, stream>>>(scales, count, seed);
  check(cudaGetLastError(), "filling scales");
}

void add_partials(const Bf16* const* partials, int world, std::int64_t count, Bf16* sum,
                  cudaStream_t stream) {
  Partials all{};
  for (int rank = 0; rank < world; ++rank) all.of[rank] = partials[rank];
  add_partials_kernel<<<blocks_for(count), kThreads, 0, stream>>>(all, world, count, sum);
  check(cudaGetLastError(), "adding partials");
}

void encode_and_widen(Bf16* y, std::int64_t rows, std::int64_t cols, cudaStream_t stream) {
  encode_and_widen_kernel<<<blocks_for(rows * (cols / 128 + 1)), kThreads, 0, stream>>>(y, rows,
                                                                                        cols);
  check(cudaGetLastError(), "encoding a result");
}

void check_ordinary_codes(float amax, Findings* findings, cudaStream_t stream) {
  check_ordinary_codes_kernel<<<blocks_for(65536), kThreads, 0, stream>>>(amax, findings);
  check(cudaGetLastError(), "comparing codes");
}

void check_sums_of_two(Findings* findings, cudaStream_t stream) {
  check_sums_of_two_kernel<<<blocks_for(std::int64_t{1} << 31), kThreads, 0, stream>>>(findings);
  check(cudaGetLastError(), "comparing sums");
}

void check_packing(const std::uint32_t* pairs, std::int64_t warps, Findings* findings,
                   unsigned long long* packed, cudaStream_t stream) {
  check_packing_kernel<<<blocks_for(warps * 32), kThreads, 0, stream>>>(pairs, warps, findings,
                                                                        packed);
  check(cudaGetLastError(), "comparing packed values");
}

void check_equal(const void* a, const void* b, std::size_t bytes, Findings* findings,
                 cudaStream_t stream) {
  const auto count = static_cast<std::int64_t>(bytes);
  check_equal_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      static_cast<const std::uint8_t*>(a), static_cast<const std::uint8_t*>(b), count, findings);
  check(cudaGetLastError(), "comparing bytes");
}

void check_bytes(const void* a, std::uint8_t value, std::size_t bytes, Findings* findings,
                 cudaStream_t stream) {
  const auto count = static_cast<std::int64_t>(bytes);
  check_bytes_kernel<<<blocks_for(count), kThreads, 0, stream>>>(
      static_cast<const std::uint8_t*>(a), value, count, findings);
  check(cudaGetLastError(), "checking bytes");
}

void add_digest(const void* a, std::size_t bytes, unsigned long long* digest, cudaStream_t stream) {
  const auto count = static_cast<std::int64_t>(bytes);
  add_digest_kernel<<<blocks_for(count), kThreads, 0, stream>>>(static_cast<const std::uint8_t*>(a),
                                                                count, digest);
  check(cudaGetLastError(), "digesting bytes");
}

}  // namespace rowband::cuda
