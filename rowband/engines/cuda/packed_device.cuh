// A lossless form of a warp's bf16 values in 12 bits each: sign and mantissa in a byte, and how far
// the exponent lies above a floor in four bits. Values of one GEMM mostly lie within 15 binades;
// where a warp's do not, they stay as they are.
//
// The 16 pairs of each lane, in whatever order the writer and the reader agree on. Packed, they are
// three units of 16 bytes a lane, else four; unit u of lane l lies at (u * 32 + l) * 16.
#pragma once

#include <cstdint>

#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {

inline constexpr int kPackedPairs = 16;  // of a lane
inline constexpr int kUnitBytes = 32 * 16;
inline constexpr int kPackedBytes = 3 * kUnitBytes, kPlainBytes = 4 * kUnitBytes;  // of a warp

// What tells a warp's bytes: the floor, which an exponent of 0 stands for if there is one of 0
// among the values, and else the exponent below the least; or that they are plain.
inline constexpr std::uint32_t kHeadFloor = 0xFF, kHeadZeros = 0x100, kHeadPlain = 0x200;

namespace packed_detail {

inline constexpr std::uint32_t kMagnitudes = 0x7FFF7FFF, kLeast = 0x00800080;  // of normal values

__device__ __forceinline__ std::uint32_t larger_half(std::uint32_t pair) {
  return max(pair & 0xFFFF, pair >> 16);
}
__device__ __forceinline__ std::uint32_t smaller_half(std::uint32_t pair) {
  return min(pair & 0xFFFF, pair >> 16);
}

// By a whole warp: whether every value that is not zero or subnormal has an exponent above `floor`.
__device__ __forceinline__ bool normals_are_above(const std::uint32_t (&pairs)[kPackedPairs],
                                                  std::uint32_t floor) {
  // Magnitudes less the least normal one, from -0x8000 on; those below it, beyond 0x7F80.
  std::uint32_t least = 0x7FFF7FFF;
#pragma unroll
  for (int i = 0; i < kPackedPairs; ++i) {
    least = __vmins2(least, (pairs[i] | 0x80008000) - kLeast);
  }
  const int lower = static_cast<std::int16_t>(least), upper = static_cast<int>(least) >> 16;
  return __all_sync(0xFFFFFFFFu, min(lower, upper) + 0x8000 >= static_cast<int>(floor << 7));
}

}  // namespace packed_detail

// By a whole warp; the same in all lanes.
__device__ __forceinline__ std::uint32_t packing_head(const std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  std::uint32_t most = 0, least = 0xFFFFFFFFu;
#pragma unroll
  for (int i = 0; i < kPackedPairs; ++i) {
    most = __vmaxu2(most, pairs[i] & kMagnitudes);
    least = __vminu2(least, pairs[i] & kMagnitudes);
  }
  const std::uint32_t top = __reduce_max_sync(0xFFFFFFFFu, larger_half(most)) >> 7;
  const std::uint32_t bottom = __reduce_min_sync(0xFFFFFFFFu, smaller_half(least)) >> 7;
  const std::uint32_t floor = top < 15 ? 0 : top - 15;
  if (floor == 0 || bottom > floor) return floor;
  return normals_are_above(pairs, floor) ? floor | kHeadZeros : kHeadPlain;
}

// Where a lane's first unit goes or comes from, in shared memory.
__device__ __forceinline__ void store_packed(std::uint32_t to, std::uint32_t head,
                                             const std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  if ((head & kHeadPlain) != 0) {
#pragma unroll
    for (int unit = 0; unit < 4; ++unit) {
      const std::uint32_t* four = pairs + 4 * unit;
      ptx::store_shared(to + unit * kUnitBytes, {four[0], four[1], four[2], four[3]});
    }
    return;
  }
  const std::uint32_t floors = (head & kHeadFloor) * kLeast;
  std::uint32_t bytes[8], above[4];
#pragma unroll
  for (int i = 0; i < kPackedPairs; i += 4) {
    above[i / 4] = 0;
    std::uint32_t spread[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t pair = pairs[i + j];
      spread[j] = (pair & 0x007F007F) | (pair >> 8 & 0x00800080);
      const std::uint32_t exponents = __vmaxu2(pair & kMagnitudes, floors) - floors;
      above[i / 4] |= j < 2 ? exponents >> (7 - 4 * j) & 0x000F000Fu << (4 * j)
                            : exponents << (4 * j - 7) & 0x000F000Fu << (4 * j);
    }
    bytes[i / 2] = __byte_perm(spread[0], spread[1], 0x6420);
    bytes[i / 2 + 1] = __byte_perm(spread[2], spread[3], 0x6420);
  }
  ptx::store_shared(to, {bytes[0], bytes[1], bytes[2], bytes[3]});
  ptx::store_shared(to + kUnitBytes, {bytes[4], bytes[5], bytes[6], bytes[7]});
  ptx::store_shared(to + 2 * kUnitBytes, {above[0], above[1], above[2], above[3]});
}

__device__ __forceinline__ void load_packed(std::uint32_t from, std::uint32_t head,
                                            std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  const uint4 units[3] = {ptx::load_shared(from), ptx::load_shared(from + kUnitBytes),
                          ptx::load_shared(from + 2 * kUnitBytes)};
  if ((head & kHeadPlain) != 0) {
    const uint4 last = ptx::load_shared(from + 3 * kUnitBytes);
    const uint4 all[4] = {units[0], units[1], units[2], last};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[4 * i] = all[i].x;
      pairs[4 * i + 1] = all[i].y;
      pairs[4 * i + 2] = all[i].z;
      pairs[4 * i + 3] = all[i].w;
    }
    return;
  }
  const std::uint32_t bytes[8] = {units[0].x, units[0].y, units[0].z, units[0].w,
                                  units[1].x, units[1].y, units[1].z, units[1].w};
  const std::uint32_t above[4] = {units[2].x, units[2].y, units[2].z, units[2].w};
  const std::uint32_t floor = (head & kHeadFloor) << 7, floors = floor * 0x00010001;
  const bool zeros = (head & kHeadZeros) != 0;
#pragma unroll
  for (int i = 0; i < kPackedPairs; ++i) {
    const std::uint32_t spread = __byte_perm(bytes[i / 2], 0, i % 2 == 0 ? 0x4140 : 0x4342);
    const std::uint32_t rest = (spread & 0x007F007F) | (spread << 8 & 0x80008000);
    const int j = i % 4;
    const std::uint32_t exponents =
        (j < 2 ? above[i / 4] << (7 - 4 * j) : above[i / 4] >> (4 * j - 7)) & 0x07800780;
    // 0x0800 wherever the exponent's bits are not all 0.
    const std::uint32_t raised =
        zeros ? ((exponents + 0x07800780) >> 11 & 0x00010001) * floor : floors;
    pairs[i] = rest + exponents + raised;
  }
}

}  // namespace rowband::cuda
