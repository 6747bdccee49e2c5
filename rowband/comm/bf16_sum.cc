#include "rowband/comm/bf16_sum.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "rowband/comm/bf16_sum.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace rowband::comm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;  // as many lanes as F32, half as wide

const std::uint16_t* bits_of(const Bf16* values) {
  return reinterpret_cast<const std::uint16_t*>(values);
}

hn::Vec<F32> load_as_float(const Bf16* values) {
  const auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), bits_of(values)));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
}

// to_bf16(float) of numerics/types.h, lane by lane.
void store_rounded(hn::Vec<F32> value, Bf16* out) {
  const U32 u32;
  const auto bits = hn::BitCast(u32, value);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(u32, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7FFFu))));
  const auto quiet = hn::Or(upper, hn::Set(u32, 0x0040u));
  const auto magnitude = hn::And(bits, hn::Set(u32, 0x7FFFFFFFu));
  const auto is_nan = hn::Gt(magnitude, hn::Set(u32, 0x7F800000u));
  const auto narrow = hn::TruncateTo(U16(), hn::IfThenElse(is_nan, quiet, rounded));
  hn::StoreU(narrow, U16(), reinterpret_cast<std::uint16_t*>(out));
}

void sum_bf16_target(std::span<const Bf16* const> sources, std::int64_t count, Bf16* out) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  std::int64_t i = 0;
  // Two accumulators hide the latency of the adds.
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    auto low = load_as_float(sources[0] + i);
    auto high = load_as_float(sources[0] + i + lanes);
    for (std::size_t source = 1; source < sources.size(); ++source) {
      low = hn::Add(low, load_as_float(sources[source] + i));
      high = hn::Add(high, load_as_float(sources[source] + i + lanes));
    }
    store_rounded(low, out + i);
    store_rounded(high, out + i + lanes);
  }
  for (; i < count; ++i) {
    float sum = to_float(sources[0][i]);
    for (std::size_t source = 1; source < sources.size(); ++source) {
      sum += to_float(sources[source][i]);
    }
    out[i] = to_bf16(sum);
  }
}

}  // namespace rowband::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace rowband::comm {

HWY_EXPORT(sum_bf16_target);

Slice slice_of(int rank, int size, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(Bf16);
  const auto bound = [&](int index) {
    if (index == size) return count;
    return count / size * index / kLine * kLine;
  };
  return {bound(rank), bound(rank + 1)};
}

void sum_bf16(std::span<const Bf16* const> sources, std::int64_t count, Bf16* out) {
  if (sources.empty() || count <= 0) return;
  HWY_DYNAMIC_DISPATCH(sum_bf16_target)(sources, count, out);
}

}  // namespace rowband::comm
#endif
