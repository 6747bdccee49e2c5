#include "rowband/engines/host/epilogue.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "rowband/numerics/float_environment.h"
#include "rowband/numerics/quantize.h"
#include "rowband/testing/operands.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace rowband::host {
namespace {

// All 65,536 bf16 values, so that every 128-block holds one exponent's worth of neighbours.
std::vector<Bf16> all_bf16() {
  std::vector<Bf16> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  return values;
}

// Bf16 blocks of mixed magnitudes: value i beside its scrambled partner.
std::vector<Bf16> scrambled_bf16() {
  std::vector<Bf16> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i].bits = static_cast<std::uint16_t>(i * 40503u);
  }
  return values;
}

void expect_equal_to_the_scalar_quantiser(const std::vector<Bf16>& x) {
  const std::int64_t depth = 512, rows = static_cast<std::int64_t>(x.size()) / depth;
  for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    std::vector<E4m3> want(x.size()), got(x.size());
    std::vector<float> want_scales(x.size() / 128), got_scales(x.size() / 128);
    quantize_activations(x.data(), rows, depth, depth, format, want.data(), depth,
                         want_scales.data());
    quantize_rows(x.data(), rows, depth, depth, format == ScaleFormat::kUe8m0, got.data(),
                  got_scales.data());
    ASSERT_EQ(std::memcmp(want_scales.data(), got_scales.data(), want_scales.size() * 4), 0);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(got[i].bits, want[i].bits) << "bf16 0x" << std::hex << x[i].bits;
    }
  }
}

TEST(QuantizeRows, EqualsTheScalarQuantiserOverEveryBf16) {
  expect_equal_to_the_scalar_quantiser(all_bf16());
  expect_equal_to_the_scalar_quantiser(scrambled_bf16());
  expect_equal_to_the_scalar_quantiser(random_bf16(65536, 7));
}

TEST(QuantizeRows, Q01_ZerosGiveZeroCodesAndScaleOne) {
  const std::vector<Bf16> x(256);
  std::vector<E4m3> codes(256, E4m3{0xAA});
  std::vector<float> scales(2);
  quantize_rows(x.data(), 1, 256, 256, false, codes.data(), scales.data());
  EXPECT_EQ(codes, std::vector<E4m3>(256));
  EXPECT_EQ(scales, (std::vector<float>{1, 1}));
}

// Sums for a tile, laid out as the GEMM leaves them.
void fill_sums(TileScratch& scratch, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < (cols + 31) / 32 * 32 * rows; ++i)
    scratch.sums()[i] = normal(engine);
}

float sum_at(const TileScratch& scratch, std::int64_t rows, std::int64_t r, std::int64_t c) {
  return scratch.sums()[(c / 32 * rows + r) * 32 + c % 32];
}

TEST(StorePartial, RoundsEveryElementAndTouchesNothingElse) {
  TileScratch scratch;
  for (const auto& [rows, cols] : {std::pair{1, 8}, {3, 40}, {256, 256}, {31, 248}}) {
    fill_sums(scratch, rows, cols, 11);
    scratch.sums()[0] = std::numeric_limits<float>::quiet_NaN();
    scratch.sums()[1] = std::bit_cast<float>(0x3F808000u);  // a tie
    scratch.sums()[2] = std::numeric_limits<float>::max();
    const std::int64_t stride = cols + 24;
    std::vector<Bf16> out(rows * stride, Bf16{0x5A5A});
    store_partial(scratch, rows, cols, out.data(), stride);
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < stride; ++c) {
        const std::uint16_t want = c < cols ? to_bf16(sum_at(scratch, rows, r, c)).bits : 0x5A5A;
        ASSERT_EQ(out[r * stride + c].bits, want) << r << "," << c;
      }
    }
  }
}

TEST(StoreReduced, AddsInRankOrderAndRoundsOnce) {
  TileScratch scratch;
  const std::int64_t rows = 5, cols = 72;
  fill_sums(scratch, rows, cols, 3);
  const auto bias = random_bf16(cols, 99);
  for (int world = 1; world <= 8; ++world) {
    std::vector<std::vector<Bf16>> partials;
    for (int r = 0; r < world; ++r) partials.push_back(random_bf16(rows * cols, 20 + r, 1 << r));
    for (int self = 0; self < world; ++self) {
      for (const Bf16* b : {static_cast<const Bf16*>(nullptr), bias.data()}) {
        std::vector<const Bf16*> views;
        for (int r = 0; r < world; ++r) views.push_back(r == self ? nullptr : partials[r].data());
        std::vector<Bf16> out(rows * cols);
        store_reduced(scratch, rows, cols, views, self, b, out.data(), cols);
        for (int r = 0; r < rows; ++r) {
          for (int c = 0; c < cols; ++c) {
            float sum = 0;
            for (int k = 0; k < world; ++k) {
              const float term = k == self ? to_float(to_bf16(sum_at(scratch, rows, r, c)))
                                           : to_float(partials[k][r * cols + c]);
              sum = k == 0 ? term : sum + term;
            }
            if (b != nullptr) sum += to_float(b[c]);
            ASSERT_EQ(out[r * cols + c].bits, to_bf16(sum).bits);
          }
        }
      }
    }
  }
}

TEST(GatherWire, EncodesByTheQuantisersFormulaAndDecodesEveryCode) {
  for (std::int64_t group : {128, 65536}) {
    for (const auto& row : {all_bf16(), random_bf16(7168, 5), random_bf16(136, 6)}) {
      const auto cols = static_cast<std::int64_t>(row.size());
      std::vector<E4m3> codes(row.size());
      std::vector<float> scales((cols + group - 1) / group);
      std::vector<Bf16> back(row.size());
      encode_row(row.data(), cols, group, codes.data(), scales.data());
      decode_row(codes.data(), scales.data(), cols, group, back.data());
      for (std::int64_t c = 0; c < cols; ++c) {
        const float scale = scales[c / group];
        ASSERT_EQ(codes[c].bits, quantize(to_float(row[c]), scale).bits);
        const Bf16 want = to_bf16(to_float(codes[c]) * scale);
        ASSERT_EQ(back[c].bits & 0x7FFF, want.bits & 0x7FFF) << c;
      }
    }
  }
}

#if defined(__SSE2__)
TEST(QuantizeRows, Q13_CallersWhoFlushSubnormalsGetTheSameBytesInsideTheScope) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // FTZ and DAZ
  {
    const ScopedFloatEnvironment strict;
    expect_equal_to_the_scalar_quantiser(all_bf16());
  }
  _mm_setcsr(before);
}
#endif

}  // namespace
}  // namespace rowband::host
