#include "rowband/cli/random_operands.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

constexpr std::int64_t kCols = 200, kDepth = 1024;

TEST(RandomOperands, ALayerIsTheSameUnderEveryWorldSize) {
  const Fp8Weight whole = random_weight_slice(7, kCols, kDepth, 0, 1);
  const auto x = random_activations(7, 0, 5, 0, kDepth);
  for (int rank = 0; rank < 4; ++rank) {
    const Fp8Weight slice = random_weight_slice(7, kCols, kDepth, rank, 4);
    ASSERT_EQ(slice.depth_begin, rank * slice.depth);
    for (std::int64_t col = 0; col < kCols; ++col) {
      for (std::int64_t k = 0; k < slice.depth; ++k) {
        ASSERT_EQ(slice.codes[col * slice.depth + k],
                  whole.codes[col * kDepth + slice.depth_begin + k]);
      }
    }
    EXPECT_EQ(slice.scales[2], whole.scales[1 * 8 + rank * 2]);
    const auto own = random_activations(7, 0, 5, slice.depth_begin, slice.depth);
    for (std::int64_t row = 0; row < 5; ++row) {
      ASSERT_TRUE(std::equal(own.begin() + row * slice.depth, own.begin() + (row + 1) * slice.depth,
                             x.begin() + row * kDepth + slice.depth_begin));
    }
  }
}

TEST(RandomOperands, SeedsSetsAndRowsDiffer) {
  const auto x = random_activations(0, 0, 2, 0, 128);
  EXPECT_NE(x, random_activations(1, 0, 2, 0, 128));
  EXPECT_NE(x, random_activations(0, 1, 2, 0, 128));
  EXPECT_FALSE(std::equal(x.begin(), x.begin() + 128, x.begin() + 128));
  EXPECT_NE(random_weight_slice(0, 8, 128, 0, 1).codes, random_weight_slice(1, 8, 128, 0, 1).codes);
}

TEST(RandomOperands, AreValidAndOfTheOrderOfOne) {
  const Fp8Weight weight = random_weight_slice(3, kCols, kDepth, 0, 1);
  EXPECT_EQ(why_not_valid(weight.view()), "");
  EXPECT_EQ(why_scales_not_valid(weight.view()), "");
  double squares = 0;
  for (std::int64_t k = 0; k < kDepth; ++k) {
    const E4m3 code = weight.codes[k];
    ASSERT_FALSE(std::isnan(to_float(code)));
    squares += std::pow(to_float(code) * weight.scales[k / kScaleBlock], 2);
  }
  EXPECT_GT(squares, 0.1);  // of a row: 1 if every scale were the mean one
  EXPECT_LT(squares, 4.0);

  squares = 0;
  const auto x = random_activations(3, 0, 64, 0, kDepth);
  for (const Bf16 value : x) squares += std::pow(to_float(value), 2);
  EXPECT_NEAR(squares / static_cast<double>(x.size()), 1.08, 0.2);  // E[u^2], u uniform in .5..1.5
}

TEST(ConstantWeight, IsWhatTheOnesTestMultipliesBy) {
  const Fp8Weight weight = constant_weight_slice(2.0f, kCols, kDepth, 1, 2);
  EXPECT_EQ(why_not_valid(weight.view()), "");
  EXPECT_EQ(to_float(weight.codes.front()), 2.0f);
  EXPECT_EQ(to_float(weight.codes.back()), 2.0f);
  EXPECT_EQ(weight.scales.size(), 2u * 4u);
}

}  // namespace
}  // namespace rowband::cli
