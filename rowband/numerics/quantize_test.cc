#include "rowband/numerics/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/numerics/numerics_test_util.h"

namespace rowband {
namespace {

using testing::nearest_e4m3;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Quantized {
  std::vector<E4m3> codes;
  std::vector<float> scales;

  bool operator==(const Quantized&) const = default;
  float value(std::int64_t index) const {
    return to_float(codes[index]) * scales[index / kScaleBlock];  // of a dense [rows, n * 128]
  }
};

std::vector<Bf16> bf16(std::span<const float> values) {
  std::vector<Bf16> result(values.size());
  std::ranges::transform(values, result.begin(), to_bf16);
  return result;
}

Quantized quantize_rows(std::span<const Bf16> x, std::int64_t rows, ScaleFormat format) {
  const std::int64_t depth = std::ssize(x) / rows;
  Quantized result{std::vector<E4m3>(x.size()), std::vector<float>(rows * scale_blocks(depth))};
  quantize_activations(x.data(), rows, depth, depth, format, result.codes.data(), depth,
                       result.scales.data());
  return result;
}

// One row of one block, zeros behind the values given.
Quantized quantize_row(std::vector<float> values, ScaleFormat format) {
  values.resize(kScaleBlock, 0.0f);
  return quantize_rows(bf16(values), 1, format);
}

// In double and by another road: frexp for the power of two, and a quotient that is rounded to
// float from double, which for a division is the correctly rounded one.
float scale_by_definition(float amax, ScaleFormat format) {
  if (amax == 0.0f) return 1.0f;
  float scale = static_cast<float>(static_cast<double>(amax) / 448.0);
  scale = std::min(std::max(scale, 0x1p-126f), kLargest);
  if (format == ScaleFormat::kFp32) return scale;
  int exponent = 0;
  const bool power = std::frexp(scale, &exponent) == 0.5f;
  return static_cast<float>(std::ldexp(1.0, std::min(power ? exponent - 1 : exponent, 127)));
}

void expect_block_by_definition(std::span<const Bf16> x, std::span<const E4m3> codes, float scale,
                                ScaleFormat format) {
  float amax = 0.0f;
  for (const Bf16 value : x) {  // not fmax, which lets a signalling NaN through
    if (!std::isnan(to_float(value))) amax = std::max(amax, std::fabs(to_float(value)));
  }
  ASSERT_EQ(scale, scale_by_definition(amax, format)) << "amax " << amax;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double value = to_float(x[i]);
    const E4m3 want = nearest_e4m3(static_cast<float>(value / static_cast<double>(scale)));
    ASSERT_EQ(codes[i].bits, want.bits) << value << " under scale " << scale;
  }
}

class QuantizeEveryBf16 : public ::testing::TestWithParam<ScaleFormat> {};

// Blocks of neighbours, whose codes are near the top of the range, and blocks that take every 512th
// pattern, whose codes are spread over all of it.
TEST_P(QuantizeEveryBf16, MatchesTheDefinition) {
  constexpr std::int64_t kBlocks = 65536 / kScaleBlock;
  std::vector<Bf16> x;
  for (std::uint32_t i = 0; i < 65536; ++i) x.push_back(Bf16{static_cast<std::uint16_t>(i)});
  for (std::uint32_t i = 0; i < 65536; ++i) {
    x.push_back(Bf16{static_cast<std::uint16_t>(i % kScaleBlock * kBlocks + i / kScaleBlock)});
  }
  const Quantized got = quantize_rows(x, 2 * kBlocks, GetParam());
  for (std::int64_t block = 0; block < 2 * kBlocks; ++block) {
    expect_block_by_definition(std::span(x).subspan(block * kScaleBlock, kScaleBlock),
                               std::span(got.codes).subspan(block * kScaleBlock, kScaleBlock),
                               got.scales[block], GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeEveryBf16,
                         ::testing::Values(ScaleFormat::kFp32, ScaleFormat::kUe8m0),
                         [](const auto& format) {
                           return format.param == ScaleFormat::kFp32 ? "Fp32" : "Ue8m0";
                         });

TEST(Quantize, Q01_BlockOfZerosGetsScaleOneAndZeroCodes) {
  std::vector<float> values(4 * 256, 3.0f);
  std::fill_n(values.begin() + 2 * 256 + 128, 128, 0.0f);
  for (const ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    const Quantized got = quantize_rows(bf16(values), 4, format);
    EXPECT_EQ(got.scales[2 * 2 + 1], 1.0f);
    for (std::int64_t i = 0; i < 4 * 256; ++i) {
      const bool zero = i >= 2 * 256 + 128 && i < 3 * 256;
      EXPECT_EQ(got.codes[i].bits == 0, zero) << i;
      EXPECT_TRUE(std::isfinite(got.value(i))) << i;
    }
  }
}

TEST(Quantize, Q03_TinyBlocksNeitherOverflowNorDisturbTheirRow) {
  for (const float amax : {6.3e-38f, 1.31e-36f, 1.32e-36f, 0x1p-133f}) {
    std::vector<float> values(2 * kScaleBlock, 0.0f);
    for (int i = 0; i < 8; ++i) values[i] = (i % 2 == 0 ? amax : -amax) / static_cast<float>(i + 1);
    for (int i = 0; i < kScaleBlock; ++i) values[kScaleBlock + i] = static_cast<float>(i - 60) / 7;
    const std::vector<Bf16> x = bf16(values);
    for (const ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
      const Quantized got = quantize_rows(x, 1, format);
      for (std::int64_t i = 0; i < kScaleBlock; ++i) {
        ASSERT_TRUE(std::isfinite(to_float(got.codes[i])));
        EXPECT_LE(std::fabs(got.value(i) - to_float(x[i])), to_float(x[0])) << amax << " at " << i;
      }
      EXPECT_TRUE(std::isnormal(got.scales[0])) << amax;
      const Quantized alone = quantize_rows(std::span(x).subspan(kScaleBlock), 1, format);
      EXPECT_EQ(got.scales[1], alone.scales[0]);
      EXPECT_TRUE(
          std::equal(alone.codes.begin(), alone.codes.end(), got.codes.begin() + kScaleBlock));
    }
  }
}

TEST(Quantize, Q05_PowerOfTwoScaleOfFour) {
  EXPECT_EQ(block_scale(4.0f, ScaleFormat::kUe8m0), to_float(E8m0{121}));
  EXPECT_EQ(block_scale(448.0f, ScaleFormat::kUe8m0), 1.0f);
  EXPECT_EQ(block_scale(std::nextafter(448.0f, 1000.0f), ScaleFormat::kUe8m0), 2.0f);
}

TEST(Quantize, Q06_CodesAreMadeWithTheRoundedScale) {
  const Quantized got = quantize_row({1, 2, 3, 4}, ScaleFormat::kUe8m0);
  EXPECT_EQ(got.scales[0], 0x1p-6f);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.value(i), static_cast<float>(i + 1));
}

TEST(Quantize, NanStaysNanAndLeavesTheScaleAlone) {
  const Quantized got = quantize_row({kNan, 448.0f, -kNan, -1.0f}, ScaleFormat::kFp32);
  EXPECT_EQ(got.scales[0], 1.0f);
  EXPECT_EQ(got.codes[0].bits, 0x7F);
  EXPECT_EQ(got.codes[1].bits, 0x7E);
  EXPECT_EQ(got.codes[2].bits, 0xFF);
  EXPECT_EQ(to_float(got.codes[3]), -1.0f);
}

TEST(Quantize, BlockOfNothingButNanGetsScaleOne) {
  const Quantized got = quantize_row(std::vector<float>(kScaleBlock, kNan), ScaleFormat::kUe8m0);
  EXPECT_EQ(got.scales[0], 1.0f);
  for (const E4m3 code : got.codes) EXPECT_EQ(code.bits, 0x7F);
}

TEST(Quantize, InfinitySaturatesUnderTheLargestScale) {
  const std::vector<float> values = {kInfinity, -kInfinity, 0x1p127f, 0x1p-9f};
  const Quantized fp32 = quantize_row(values, ScaleFormat::kFp32);
  EXPECT_EQ(fp32.scales[0], kLargest);
  EXPECT_EQ(to_float(fp32.codes[0]), 448.0f);
  EXPECT_EQ(to_float(fp32.codes[1]), -448.0f);
  EXPECT_EQ(to_float(fp32.codes[2]), 0.5f);
  EXPECT_EQ(to_float(fp32.codes[3]), 0.0f);
  const Quantized ue8m0 = quantize_row(values, ScaleFormat::kUe8m0);
  EXPECT_EQ(ue8m0.scales[0], 0x1p127f);
  EXPECT_EQ(to_float(ue8m0.codes[0]), 448.0f);
  EXPECT_EQ(to_float(ue8m0.codes[2]), 1.0f);
}

TEST(Quantize, DividesAndDoesNotMultiplyByTheReciprocal) {
  int differ = 0;
  for (std::uint32_t amax_bits = 0x3F80; amax_bits < 0x4000; ++amax_bits) {
    const float scale =
        block_scale(to_float(Bf16{static_cast<std::uint16_t>(amax_bits)}), ScaleFormat::kFp32);
    for (std::uint32_t bits = 0x3C00; bits <= amax_bits; ++bits) {
      const float x = to_float(Bf16{static_cast<std::uint16_t>(bits)});
      const double quotient = static_cast<double>(x) / static_cast<double>(scale);
      const E4m3 got = quantize(x, scale);
      ASSERT_EQ(got.bits, to_e4m3(static_cast<float>(quotient)).bits) << x << " / " << scale;
      if (to_e4m3(x * (1.0f / scale)) != got) ++differ;
    }
  }
  EXPECT_GT(differ, 0) << "no input here tells a division from a multiplication";
}

TEST(Quantize, ShortLastBlockAndStridesTouchNothingElse) {
  constexpr std::int64_t kRows = 3, kDepth = 200, kStride = 210, kCodesStride = 220;
  std::vector<Bf16> x(kRows * kStride, to_bf16(1e30f));  // what lies between rows must not count
  std::vector<Bf16> dense;
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t k = 0; k < kDepth; ++k) {
      x[row * kStride + k] = to_bf16(static_cast<float>((row * 131 + k * 17) % 97 - 48));
      dense.push_back(x[row * kStride + k]);
    }
  }
  const Quantized want = quantize_rows(dense, kRows, ScaleFormat::kFp32);
  std::vector<E4m3> codes(kRows * kCodesStride, E4m3{0xAB});
  std::vector<float> scales(kRows * 2 + 1, -5.0f);
  quantize_activations(x.data(), kRows, kDepth, kStride, ScaleFormat::kFp32, codes.data(),
                       kCodesStride, scales.data());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t k = 0; k < kCodesStride; ++k) {
      const E4m3 expected = k < kDepth ? want.codes[row * kDepth + k] : E4m3{0xAB};
      EXPECT_EQ(codes[row * kCodesStride + k].bits, expected.bits) << row << ", " << k;
    }
  }
  EXPECT_TRUE(std::equal(want.scales.begin(), want.scales.end(), scales.begin()));
  EXPECT_EQ(scales.back(), -5.0f);
}

TEST(QuantizeWeights, EachBlockOf128By128HasItsScaleShortOnesToo) {
  constexpr std::int64_t kCols = 136, kDepth = 300, kStride = 301;
  std::vector<float> w(kCols * kStride, 1e30f);
  const auto amax = [](std::int64_t n, std::int64_t k) {
    return std::ldexp(448.0f, static_cast<int>(n / 128 * 3 + k / 128));
  };
  for (std::int64_t n = 0; n < kCols; ++n) {
    for (std::int64_t k = 0; k < kDepth; ++k) {
      w[n * kStride + k] = amax(n, k) * ((n + k) % 2 == 0 ? 1.0f : -0.5f);
    }
  }
  std::vector<E4m3> codes(kCols * kDepth);
  std::vector<float> scales(2 * 3);
  quantize_weights(w.data(), kCols, kDepth, kStride, ScaleFormat::kFp32, codes.data(),
                   scales.data());
  EXPECT_EQ(scales, (std::vector<float>{1, 2, 4, 8, 16, 32}));
  for (std::int64_t n = 0; n < kCols; ++n) {
    for (std::int64_t k = 0; k < kDepth; ++k) {
      ASSERT_EQ(to_float(codes[n * kDepth + k]), (n + k) % 2 == 0 ? 448.0f : -224.0f)
          << n << ", " << k;
    }
  }
}

#ifdef ROWBAND_CAN_FLUSH_DENORMALS
TEST(Quantize, BitsDoNotDependOnTheCallersFloatEnvironment) {
  std::vector<Bf16> x(65536);
  for (std::size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<std::uint16_t>(i);
  std::vector<float> w(256 * 256);
  for (std::size_t i = 0; i < w.size(); ++i) {
    w[i] = std::ldexp(1.0f + static_cast<float>(i % 251) / 251, -140 + static_cast<int>(i % 40));
  }
  const auto all = [&](ScaleFormat format) {
    std::vector<Quantized> results{quantize_rows(x, 512, format)};
    results.push_back({std::vector<E4m3>(w.size()), std::vector<float>(4)});
    quantize_weights(w.data(), 256, 256, 256, format, results[1].codes.data(),
                     results[1].scales.data());
    results.push_back({{quantize(0x1p-120f, 0x1.8p-126f), quantize(1.0f, 3.0f)},
                       {block_scale(0x1p-133f, format), block_scale(1.0f, format)}});
    return results;
  };
  for (const ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    const std::vector<Quantized> want = all(format);
    std::vector<Quantized> got;
    {
      const testing::ScopedHostileFloatEnvironment hostile;
      got = all(format);
    }
    EXPECT_TRUE(got == want);
    EXPECT_EQ(want[2].scales[0], 0x1p-126f);
  }
}
#endif

template <typename Call>
void expect_refused(Call call, const std::string& message) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.what(), message);
  }
}

TEST(Quantize, RefusesArgumentsOutsideItsContract) {
  Bf16 x[kScaleBlock];
  float w[kScaleBlock], scales[1];
  E4m3 codes[kScaleBlock];
  const auto activations = [&](const Bf16* in, std::int64_t rows, std::int64_t depth,
                               std::int64_t stride, std::int64_t codes_stride) {
    return [=, out = +codes, s = +scales] {
      quantize_activations(in, rows, depth, stride, ScaleFormat::kFp32, out, codes_stride, s);
    };
  };
  expect_refused(activations(x, -1, 128, 128, 128), "rows is -1, must be >= 0");
  expect_refused(activations(x, 1, 0, 128, 128), "depth is 0, must be >= 1");
  expect_refused(activations(x, 1, 128, 127, 128),
                 "x_row_stride is 127, must be at least the depth, 128");
  expect_refused(activations(x, 1, 128, 128, 127),
                 "codes_row_stride is 127, must be at least the depth, 128");
  expect_refused(activations(nullptr, 1, 128, 128, 128), "x is null, must point to 1 rows");
  expect_refused([&] { quantize_weights(w, -8, 128, 128, ScaleFormat::kFp32, codes, scales); },
                 "cols is -8, must be >= 0");
  expect_refused([&] { quantize_weights(w, 1, 128, 5, ScaleFormat::kFp32, codes, scales); },
                 "w_row_stride is 5, must be at least the depth, 128");
  expect_refused([&] { quantize_weights(w, 1, 128, 128, ScaleFormat::kFp32, codes, nullptr); },
                 "scales is null, must point to 1 rows");
  expect_refused([] { block_scale(-1.0f, ScaleFormat::kFp32); },
                 "amax is -1, must be >= 0: the largest magnitude of a block");
  expect_refused([] { block_scale(kNan, ScaleFormat::kFp32); },
                 "amax is nan, must be >= 0: the largest magnitude of a block");
  for (const float scale : {0.0f, -1.0f, kInfinity, kNan, 0x1p-130f}) {
    EXPECT_THROW(quantize(1.0f, scale), Error) << scale;
  }
}

TEST(Quantize, NoRowsNeedNoMemory) {
  EXPECT_NO_THROW(
      quantize_activations(nullptr, 0, 128, 128, ScaleFormat::kFp32, nullptr, 128, nullptr));
  EXPECT_NO_THROW(quantize_weights(nullptr, 0, 128, 128, ScaleFormat::kFp32, nullptr, nullptr));
}

}  // namespace
}  // namespace rowband
