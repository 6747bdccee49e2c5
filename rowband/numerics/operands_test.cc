#include "rowband/numerics/operands.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "rowband/numerics/numerics_test_util.h"

namespace rowband {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Valid views of 4 rows (264 columns, thus 3 rows of blocks) and 2 K blocks; each test spoils one
// thing. Checks look at pointers only for null, so the codes may be fewer than a view says.
class Operands : public ::testing::Test {
 protected:
  std::vector<E4m3> codes_ = std::vector<E4m3>(1);
  std::vector<float> scales_ = std::vector<float>(8, 1.0f);
  ActivationView x_{codes_.data(), 4, 256, 256, scales_.data(), 2, 1};
  WeightView w_{codes_.data(), 264, 256, 256, scales_.data(), 2, 1};
};

TEST_F(Operands, DenseViewsAreValid) {
  EXPECT_EQ(why_not_valid(x_), "");
  EXPECT_EQ(why_not_valid(w_), "");
}

TEST_F(Operands, StridedAndBlockMajorViewsAreValid) {
  x_.row_stride = 1000;
  x_.scale_row_stride = 1;
  x_.scale_block_stride = 4;
  EXPECT_EQ(why_not_valid(x_), "");
  w_.row_stride = 257;
  w_.scale_row_stride = 1;
  w_.scale_block_stride = 3;
  EXPECT_EQ(why_not_valid(w_), "");
  w_.scale_row_stride = 10;  // padded, and every second scale
  w_.scale_block_stride = 2;
  EXPECT_EQ(why_not_valid(w_), "");
}

TEST_F(Operands, NoRowsNeedNoMemory) {
  EXPECT_EQ(why_not_valid(ActivationView{.depth = 128}), "");
  EXPECT_EQ(why_scales_not_valid(ActivationView{.depth = 128}), "");
}

TEST_F(Operands, NegativeRows) {
  x_.rows = -1;
  EXPECT_EQ(why_not_valid(x_), "activation rows (M) is -1, must be >= 0");
}

TEST_F(Operands, ColsMustBeAPositiveMultipleOf8) {
  for (const std::int64_t cols : {std::int64_t{-8}, std::int64_t{0}, std::int64_t{12}}) {
    w_.cols = cols;
    EXPECT_EQ(why_not_valid(w_),
              "weight cols (N) is " + std::to_string(cols) + ", must be a positive multiple of 8");
  }
}

TEST_F(Operands, DepthMustBeAPositiveMultipleOf128) {
  for (const std::int64_t depth : {std::int64_t{-128}, std::int64_t{0}, std::int64_t{192}}) {
    const std::string rest =
        " depth (K) is " + std::to_string(depth) + ", must be a positive multiple of 128";
    x_.depth = w_.depth = depth;
    EXPECT_EQ(why_not_valid(x_), "activation" + rest);
    EXPECT_EQ(why_not_valid(w_), "weight" + rest);
  }
}

TEST_F(Operands, NullPointers) {
  w_.codes = nullptr;
  EXPECT_EQ(why_not_valid(w_), "weight codes are null, must point to 264 rows");
  x_.scales = nullptr;
  EXPECT_EQ(why_not_valid(x_), "activation scales are null, must point to 4 rows of 2 blocks");
}

TEST_F(Operands, RowsMustNotOverlap) {
  x_.row_stride = 255;
  EXPECT_EQ(why_not_valid(x_), "activation row_stride is 255, must be at least the depth, 256");
  w_.row_stride = -256;
  EXPECT_EQ(why_not_valid(w_), "weight row_stride is -256, must be at least the depth, 256");
}

TEST_F(Operands, ScaleStridesMustBePositive) {
  x_.scale_row_stride = 0;
  EXPECT_EQ(why_not_valid(x_), "activation scale_row_stride is 0, must be > 0");
  w_.scale_block_stride = -1;
  EXPECT_EQ(why_not_valid(w_), "weight scale_block_stride is -1, must be > 0");
}

TEST_F(Operands, ScalesMustNotOverlap) {
  x_.scale_row_stride = 1;
  x_.scale_block_stride = 3;  // 4 rows need 4
  EXPECT_EQ(why_not_valid(x_),
            "activation scales overlap: scale_row_stride 1 and scale_block_stride 3 do not fit 4 "
            "rows of 2 blocks; row-major scales have strides 2 and 1, block-major ones 1 and 4");
  w_.scale_row_stride = 1;
  w_.scale_block_stride = 1;
  EXPECT_NE(why_not_valid(w_).find("do not fit 3 rows of 2 blocks"), std::string::npos);
}

TEST_F(Operands, StrideOfADimensionOfOneIsFree) {
  x_.rows = 1;
  x_.scale_row_stride = x_.scale_block_stride = 1;
  EXPECT_EQ(why_not_valid(x_), "");
  w_.depth = w_.row_stride = 128;
  w_.scale_row_stride = 1;
  w_.scale_block_stride = 2;
  EXPECT_EQ(why_not_valid(w_), "");
}

TEST_F(Operands, HugeStridesDoNotOverflow) {
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  x_.scale_row_stride = kHuge;
  x_.scale_block_stride = kHuge;
  EXPECT_NE(why_not_valid(x_).find("scales overlap"), std::string::npos);
}

TEST_F(Operands, Q10_UnloadedScalesAreNamedByTheirIndex) {
  for (const float bad : {-3.4e38f, 0.0f, -0.0f, kNan, -kNan, kInfinity, -kInfinity, -1.0f}) {
    scales_.assign(8, 1.0f);
    scales_[5] = bad;
    scales_[7] = -7.0f;  // a later one is not the first
    EXPECT_EQ(why_scales_not_valid(x_).substr(0, 27), "activation scale [2, 1] is ") << bad;
    EXPECT_EQ(why_scales_not_valid(w_).substr(0, 23), "weight scale [2, 1] is ") << bad;
  }
  scales_[5] = -1.5f;
  EXPECT_EQ(why_scales_not_valid(w_), "weight scale [2, 1] is -1.5, must be finite and > 0");
}

TEST_F(Operands, Q10_IndexFollowsTheStrides) {
  x_.scale_row_stride = 1;
  x_.scale_block_stride = 4;
  scales_[7] = 0.0f;
  EXPECT_EQ(why_scales_not_valid(x_), "activation scale [3, 1] is 0, must be finite and > 0");
  scales_.assign(8, 1.0f);
  x_.rows = 3;  // scales_[3] and scales_[7] are padding now
  scales_[3] = scales_[7] = kNan;
  EXPECT_EQ(why_scales_not_valid(x_), "");
}

TEST_F(Operands, LargestAndSmallestPositiveScalesAreValid) {
  scales_[0] = std::numeric_limits<float>::max();
  scales_[1] = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(why_scales_not_valid(w_), "");
#ifdef ROWBAND_CAN_FLUSH_DENORMALS
  const testing::ScopedHostileFloatEnvironment hostile;
  EXPECT_EQ(why_scales_not_valid(w_), "");
#endif
}

}  // namespace
}  // namespace rowband
