// A lossless form of a warp's bf16 values in 12 bits each: sign, mantissa, and in four bits how far
// the exponent lies above a floor. Values of one GEMM mostly lie within 15 binades; where a warp's
// do not, they stay as they are.
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

// What tells a warp's bytes: the floor, which is 0 or less than every exponent; above 0, that zeros
// or subnormals are among the values, whose exponent 0 the floor stands for; or that they are
// plain.
inline constexpr std::uint32_t kHeadFloor = 0xFF, kHeadZeros = 0x100, kHeadPlain = 0x200;

namespace packed_detail {

// Of the two values in a word.
inline constexpr std::uint32_t kMagnitudes = 0x7FFF7FFF, kMantissasAndSigns = 0x807F807F;
inline constexpr std::uint32_t kLeastNormals = 0x00800080;
// In 16 bits, 12 of a packed value: sign and, from bit 0 on, mantissa and exponent above the floor.
inline constexpr std::uint32_t kTwelve = 0x87FF87FF, kExponents = 0x07800780;

__device__ __forceinline__ std::uint32_t larger_half(std::uint32_t pair) {
  return max(pair & 0xFFFF, pair >> 16);
}
__device__ __forceinline__ std::uint32_t smaller_half(std::uint32_t pair) {
  return min(pair & 0xFFFF, pair >> 16);
}

// By a whole warp: whether every value that is not zero or subnormal has an exponent above `floor`.
__device__ __forceinline__ bool normals_are_above(const std::uint32_t (&pairs)[kPackedPairs],
                                                  std::uint32_t floor) {
  // Magnitudes less the least normal one, from -0x8000 on; those below it, from 0x7F80 on.
  std::uint32_t least = kMagnitudes;
#pragma unroll
  for (int i = 0; i < kPackedPairs; ++i) {
    least = __vmins2(least, (pairs[i] | 0x80008000) - kLeastNormals);
  }
  const int lower = static_cast<std::int16_t>(least), upper = static_cast<int>(least) >> 16;
  return __all_sync(0xFFFFFFFFu, min(lower, upper) + 0x8000 >= static_cast<int>(floor << 7));
}

// At `at`, in shared memory, this lane's first unit.
template <int units>
__device__ __forceinline__ void store_units(std::uint32_t at,
                                            const std::uint32_t (&words)[4 * units]) {
#pragma unroll
  for (int unit = 0; unit < units; ++unit) {
    const std::uint32_t* four = words + 4 * unit;
    ptx::store_shared(at + unit * kUnitBytes, {four[0], four[1], four[2], four[3]});
  }
}
template <int units>
__device__ __forceinline__ void load_units(std::uint32_t at, std::uint32_t (&words)[4 * units]) {
#pragma unroll
  for (int unit = 0; unit < units; ++unit) {
    const uint4 four = ptx::load_shared(at + unit * kUnitBytes);
    words[4 * unit] = four.x;
    words[4 * unit + 1] = four.y;
    words[4 * unit + 2] = four.z;
    words[4 * unit + 3] = four.w;
  }
}

// The fourth's bits go where the other three have none: 11 to 14.
__device__ __forceinline__ void store_four(std::uint32_t (&words)[12], int first,
                                           const std::uint32_t (&twelve)[4]) {
  const std::uint32_t fourth = twelve[3];
  words[first] = twelve[0] | (fourth << 11 & 0x78007800);
  words[first + 1] = twelve[1] | (fourth << 7 & 0x78007800);
  words[first + 2] = twelve[2] | (fourth << 3 & 0x38003800) | (fourth >> 1 & 0x40004000);
}
__device__ __forceinline__ void load_four(const std::uint32_t (&words)[12], int first,
                                          std::uint32_t (&twelve)[4]) {
  const std::uint32_t a = words[first], b = words[first + 1], c = words[first + 2];
  twelve[0] = a & kTwelve;
  twelve[1] = b & kTwelve;
  twelve[2] = c & kTwelve;
  twelve[3] = (a >> 11 & 0x000F000F) | (b >> 7 & 0x00F000F0) | (c >> 3 & 0x07000700) |
              (c << 1 & 0x80008000);
}

}  // namespace packed_detail

// By a whole warp; the same in all lanes.
__device__ __forceinline__ std::uint32_t packing_head(const std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  std::uint32_t most = 0, least = kMagnitudes;
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

// `to`: where this lane's first unit goes, in shared memory.
__device__ __forceinline__ void store_packed(std::uint32_t to, std::uint32_t head,
                                             const std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  if ((head & kHeadPlain) != 0) return store_units<4>(to, pairs);
  const std::uint32_t floors = (head & kHeadFloor) * kLeastNormals;
  const bool zeros = (head & kHeadZeros) != 0;
  std::uint32_t words[12];
#pragma unroll
  for (int i = 0; i < kPackedPairs; i += 4) {
    std::uint32_t twelve[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const std::uint32_t pair = pairs[i + j];
      twelve[j] = pair - floors;
      if (zeros) {
        const std::uint32_t above = __vmaxu2(pair & kMagnitudes, floors) - floors;
        twelve[j] = (pair & kMantissasAndSigns) | (above & kExponents);
      }
    }
    store_four(words, i / 4 * 3, twelve);
  }
  store_units<3>(to, words);
}

// `from`: where this lane's first unit lies, in shared memory.
__device__ __forceinline__ void load_packed(std::uint32_t from, std::uint32_t head,
                                            std::uint32_t (&pairs)[kPackedPairs]) {
  using namespace packed_detail;
  if ((head & kHeadPlain) != 0) return load_units<4>(from, pairs);
  std::uint32_t words[12];
  load_units<3>(from, words);
  const std::uint32_t floor = (head & kHeadFloor) << 7, floors = floor * 0x00010001;
  const bool zeros = (head & kHeadZeros) != 0;
#pragma unroll
  for (int i = 0; i < kPackedPairs; i += 4) {
    std::uint32_t twelve[4];
    load_four(words, i / 4 * 3, twelve);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t raised = floors;
      if (zeros) {  // only where the exponent's bits are not all 0, which carries into bit 11
        raised = (((twelve[j] & kExponents) + kExponents) >> 11 & 0x00010001) * floor;
      }
      pairs[i + j] = twelve[j] + raised;
    }
  }
}

}  // namespace rowband::cuda
