#include "rowband/engines/host/epilogue.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rowband/engines/host/epilogue.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// Compiled once per target from here on.
#include "hwy/highway.h"

#include <algorithm>

#include "rowband/numerics/quantize.h"

HWY_BEFORE_NAMESPACE();
namespace rowband::host {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Eight columns are the granule of N, so nothing has a tail. Wide loops take 16 where they can.
template <int lanes>
struct Ops {
  using F = hn::CappedTag<float, lanes>;
  using U32 = hn::Rebind<std::uint32_t, F>;
  using I32 = hn::Rebind<std::int32_t, F>;
  using U16 = hn::Rebind<std::uint16_t, F>;
  using U8 = hn::Rebind<std::uint8_t, F>;
  using V = hn::Vec<F>;

  static std::int64_t step() { return static_cast<std::int64_t>(hn::Lanes(F())); }

  static V load(const Bf16* at) {
    const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(at));
    return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
  }

  // to_bf16 of numerics/types.h, lane by lane.
  static hn::Vec<U32> round_bits(V value) {
    const auto bits = hn::BitCast(U32(), value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(U32(), 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(U32(), 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(U32(), 0x0040));
    return hn::IfThenElse(hn::RebindMask(U32(), hn::IsNaN(value)), quiet, rounded);
  }

  static V round(V value) { return hn::BitCast(F(), hn::ShiftLeft<16>(round_bits(value))); }

  static void store(V value, Bf16* at) {
    hn::StoreU(hn::TruncateTo(U16(), round_bits(value)), U16(),
               reinterpret_cast<std::uint16_t*>(at));
  }

  // to_e4m3 of numerics/types.h, lane by lane.
  static hn::Vec<U32> encode(V value) {
    const auto bits = hn::BitCast(U32(), value);
    const auto sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(U32(), 0x80));
    const V magnitude = hn::Min(hn::Abs(value), hn::Set(F(), kE4m3Max));
    // Normal codes: nearest even at bit 20, then the exponent's bias from 127 to 7.
    const auto m = hn::BitCast(U32(), magnitude);
    const auto odd = hn::And(hn::ShiftRight<20>(m), hn::Set(U32(), 1));
    const auto rounded = hn::ShiftRight<20>(hn::Add(m, hn::Add(odd, hn::Set(U32(), 0x7FFFF))));
    const auto normal = hn::Sub(rounded, hn::Set(U32(), 120 << 3));
    // Subnormal codes are multiples of 2^-9, the spacing of floats just above 2^14.
    const auto aligned = hn::BitCast(U32(), hn::Add(magnitude, hn::Set(F(), 0x1p14f)));
    const auto subnormal = hn::And(aligned, hn::Set(U32(), 0xF));
    const auto small = hn::RebindMask(U32(), hn::Lt(magnitude, hn::Set(F(), 0x1p-6f)));
    const auto code = hn::IfThenElse(small, subnormal, normal);
    const auto nan = hn::RebindMask(U32(), hn::IsNaN(value));
    return hn::Or(hn::IfThenElse(nan, hn::Set(U32(), 0x7F), code), sign);
  }

  // The low byte is the same for |value| below 464, the first that would not round to 448; the
  // others are not meaningful. Adding 2^20 times the value's own power of two rounds it, to nearest
  // even, at the spacing of its code; the sum's low bits count eighths of that power. No power
  // below 2^-6 makes subnormal codes come out the same way. Seven powers more add 56 to the count:
  // with the power's exponent bits in place, that is the code's bias, modulo 256.
  static hn::Vec<U32> encode_in_range(V value) {
    const auto bits = hn::BitCast(U32(), value);
    const V power = hn::Max(hn::BitCast(F(), hn::And(bits, hn::Set(U32(), 0x7F800000u))),
                            hn::Set(F(), 0x1p-6f));
    const V sum = hn::MulAdd(power, hn::Set(F(), 0x1p20f + 7.0f), hn::Abs(value));
    const auto code =
        hn::Add(hn::BitCast(U32(), sum), hn::ShiftRight<20>(hn::BitCast(U32(), power)));
    return hn::Or(code, hn::And(hn::ShiftRight<24>(bits), hn::Set(U32(), 0x80)));
  }

  static V decode(hn::Vec<U32> code) {
    const auto magnitude = hn::And(code, hn::Set(U32(), 0x7F));
    const V value = hn::Mul(hn::BitCast(F(), hn::ShiftLeft<20>(magnitude)), hn::Set(F(), 0x1p120f));
    const auto nan = hn::RebindMask(F(), hn::Eq(magnitude, hn::Set(U32(), 0x7F)));
    const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(U32(), 0x80)));
    return hn::Or(hn::IfThenElse(nan, hn::BitCast(F(), hn::Set(U32(), 0x7FC00000)), value),
                  hn::BitCast(F(), sign));
  }
};

void store_partial(const TileScratch& scratch, std::int64_t rows, std::int64_t cols, Bf16* out,
                   std::int64_t stride) {
  using O = Ops<8>;
  for (std::int64_t c = 0; c < cols; c += kPanelCols) {
    const float* panel = scratch.sums() + c * rows;
    const std::int64_t width = std::min(kPanelCols, cols - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; i += O::step()) {
        O::store(hn::LoadU(O::F(), panel + r * kPanelCols + i), out + r * stride + c + i);
      }
    }
  }
}

void store_reduced(const TileScratch& scratch, std::int64_t rows, std::int64_t cols,
                   std::span<const Bf16* const> partials, int self, const Bf16* bias, Bf16* out,
                   std::int64_t stride) {
  using O = Ops<8>;
  const int world = static_cast<int>(partials.size());
  for (std::int64_t c = 0; c < cols; c += kPanelCols) {
    const float* panel = scratch.sums() + c * rows;
    const std::int64_t width = std::min(kPanelCols, cols - c);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < width; i += O::step()) {
        const std::int64_t at = r * stride + c + i;
        const auto own = O::round(hn::LoadU(O::F(), panel + r * kPanelCols + i));
        auto sum = self == 0 ? own : O::load(partials[0] + at);
        for (int rank = 1; rank < world; ++rank) {
          sum = hn::Add(sum, rank == self ? own : O::load(partials[rank] + at));
        }
        if (bias != nullptr) sum = hn::Add(sum, O::load(bias + c + i));
        O::store(sum, out + at);
      }
    }
  }
}

// The largest magnitude of `count` bf16 values as bits, NaN above all others.
HWY_INLINE std::uint16_t largest_bits(const Bf16* x, std::int64_t count) {
  const hn::CappedTag<std::uint16_t, 32> du16;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(du16));
  const auto* bits = reinterpret_cast<const std::uint16_t*>(x);
  const auto magnitude = hn::Set(du16, 0x7FFF);
  auto most = hn::Zero(du16);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    most = hn::Max(most, hn::And(hn::LoadU(du16, bits + i), magnitude));
  }
  std::uint16_t largest = hn::GetLane(hn::MaxOfLanes(du16, most));
  for (; i < count; ++i) largest = std::max<std::uint16_t>(largest, bits[i] & 0x7FFF);
  return largest;
}

// The largest magnitude among `count` values, NaN left out.
template <class O>
float largest_number(const Bf16* x, std::int64_t count) {
  auto most = hn::Zero(typename O::F());
  for (std::int64_t i = 0; i < count; i += O::step()) {
    const auto value = O::load(x + i);
    most = hn::Max(most, hn::IfThenZeroElse(hn::IsNaN(value), hn::Abs(value)));
  }
  return hn::GetLane(hn::MaxOfLanes(typename O::F(), most));
}

struct GroupScale {
  float scale;
  bool finite;  // no NaN, no infinity
};

template <class O>
GroupScale scale_group(const Bf16* x, std::int64_t count, ScaleFormat format) {
  constexpr std::uint16_t kInfinity = 0x7F80;
  const std::uint16_t bits = largest_bits(x, count);
  if (bits < kInfinity) return {block_scale_in_ieee(to_float(Bf16{bits}), format), true};
  return {block_scale_in_ieee(largest_number<O>(x, count), format), false};
}

// Memory speed is reached only without the branches for NaN and infinity.
template <class O>
void encode_group(const Bf16* x, std::int64_t count, GroupScale group, E4m3* codes) {
  const auto divisor = hn::Set(typename O::F(), group.scale);
  auto* out = reinterpret_cast<std::uint8_t*>(codes);
  for (std::int64_t i = 0; i < count; i += O::step()) {
    const auto value = hn::Div(O::load(x + i), divisor);
    hn::StoreU(hn::TruncateTo(typename O::U8(),
                              group.finite ? O::encode_in_range(value) : O::encode(value)),
               typename O::U8(), out + i);
  }
}

// A row in groups, one scale each. All scales of a stretch come before its codes, so that the
// latencies of finding them overlap.
template <class O>
void encode_groups(const Bf16* x, std::int64_t cols, std::int64_t group, ScaleFormat format,
                   E4m3* codes, float* scales) {
  constexpr std::int64_t kStretch = 16;
  GroupScale found[kStretch];
  for (std::int64_t begin = 0; begin < cols; begin += kStretch * group) {
    const std::int64_t end = std::min(begin + kStretch * group, cols);
    for (std::int64_t c = begin, i = 0; c < end; c += group, ++i) {
      found[i] = scale_group<O>(x + c, std::min(group, end - c), format);
      scales[c / group] = found[i].scale;
    }
    for (std::int64_t c = begin, i = 0; c < end; c += group, ++i) {
      encode_group<O>(x + c, std::min(group, end - c), found[i], codes + c);
    }
  }
}

void encode_row(const Bf16* row, std::int64_t cols, std::int64_t group, E4m3* codes,
                float* scales) {
  encode_groups<Ops<8>>(row, cols, group, ScaleFormat::kFp32, codes, scales);
}

void decode_row(const E4m3* codes, const float* scales, std::int64_t cols, std::int64_t group,
                Bf16* row) {
  using O = Ops<8>;
  for (std::int64_t c = 0; c < cols; c += group) {
    const auto scale = hn::Set(O::F(), scales[c / group]);
    for (std::int64_t i = c; i < std::min(c + group, cols); i += O::step()) {
      const auto code = hn::PromoteTo(
          O::U32(), hn::LoadU(O::U8(), reinterpret_cast<const std::uint8_t*>(codes + i)));
      O::store(hn::Mul(O::decode(code), scale), row + i);
    }
  }
}

void quantize_rows(const Bf16* x, std::int64_t rows, std::int64_t depth, std::int64_t x_row_stride,
                   bool ue8m0, E4m3* codes, float* scales) {
  const ScaleFormat format = ue8m0 ? ScaleFormat::kUe8m0 : ScaleFormat::kFp32;
  for (std::int64_t r = 0; r < rows; ++r) {
    encode_groups<Ops<16>>(x + r * x_row_stride, depth, kScaleBlock, format, codes + r * depth,
                           scales + r * (depth / kScaleBlock));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace rowband::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rowband::host {

HWY_EXPORT(store_partial);
HWY_EXPORT(store_reduced);
HWY_EXPORT(encode_row);
HWY_EXPORT(decode_row);
HWY_EXPORT(quantize_rows);

void store_partial(const TileScratch& scratch, std::int64_t rows, std::int64_t cols, Bf16* out,
                   std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(store_partial)(scratch, rows, cols, out, stride);
}

void store_reduced(const TileScratch& scratch, std::int64_t rows, std::int64_t cols,
                   std::span<const Bf16* const> partials, int self, const Bf16* bias, Bf16* out,
                   std::int64_t stride) {
  HWY_DYNAMIC_DISPATCH(store_reduced)(scratch, rows, cols, partials, self, bias, out, stride);
}

void encode_row(const Bf16* row, std::int64_t cols, std::int64_t group, E4m3* codes,
                float* scales) {
  HWY_DYNAMIC_DISPATCH(encode_row)(row, cols, group, codes, scales);
}

void decode_row(const E4m3* codes, const float* scales, std::int64_t cols, std::int64_t group,
                Bf16* row) {
  HWY_DYNAMIC_DISPATCH(decode_row)(codes, scales, cols, group, row);
}

void quantize_rows(const Bf16* x, std::int64_t rows, std::int64_t depth, std::int64_t x_row_stride,
                   bool ue8m0, E4m3* codes, float* scales) {
  HWY_DYNAMIC_DISPATCH(quantize_rows)(x, rows, depth, x_row_stride, ue8m0, codes, scales);
}

}  // namespace rowband::host
#endif
