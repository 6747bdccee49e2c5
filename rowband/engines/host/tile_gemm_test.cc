#include "rowband/engines/host/tile_gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/numerics/quantize.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband::host {
namespace {

using testing::HasSubstr;

class TileGemmTest : public testing::TestWithParam<TileGemm> {
 protected:
  // The [rows, cols] corner at (rows.begin, cols.begin), dense.
  std::vector<float> run(const ActivationView& x, const WeightView& w, Range rows, Range cols) {
    GetParam().run(x, w, rows, cols, scratch_);
    std::vector<float> out;
    for (std::int64_t r = 0; r < rows.size(); ++r) {
      for (std::int64_t c = 0; c < cols.size(); ++c) {
        out.push_back(
            scratch_.sums()[(c / kPanelCols * rows.size() + r) * kPanelCols + c % kPanelCols]);
      }
    }
    return out;
  }

  TileScratch scratch_;
};

TEST_P(TileGemmTest, MatchesTheFloat64ReferenceOnRandomOperands) {
  for (const auto& [rows, cols, depth] :
       {std::tuple{256, 256, 512}, {1, 8, 128}, {7, 40, 384}, {33, 136, 1152}, {255, 248, 256}}) {
    const RandomActivations x(rows, depth, 1);
    const RandomWeight w(cols, depth, 2);
    const auto got = run(x.view(), w.view(), {0, rows}, {0, cols});
    std::vector<std::int64_t> wanted(rows);
    for (int r = 0; r < rows; ++r) wanted[r] = r;
    const ActivationView xs[] = {x.view()};
    const WeightView ws[] = {w.view()};
    const auto want = reference_rows(xs, ws, nullptr, wanted, 2);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LE(std::sqrt(error / norm), 1e-6) << rows << " x " << cols << " x " << depth;
  }
}

TEST_P(TileGemmTest, K03_OnesGiveTwiceTheDepthForEveryNumberOfBlocks) {
  for (int depth = 128; depth <= 2304; depth += 128) {
    const ConstantActivations x(9, depth, 1.0f);
    const ConstantWeight w(40, depth, 2.0f);
    for (float value : run(x.view(), w.view(), {0, 9}, {0, 40}))
      ASSERT_EQ(value, 2.0f * static_cast<float>(depth));
  }
}

TEST_P(TileGemmTest, K05_ColumnsPastTheLastWholeBlockUseTheLastScaleRow) {
  const ConstantActivations x(5, 256, 1.0f);
  ConstantWeight w(576, 256, 2.0f);
  for (int row = 0; row < 5; ++row) {
    for (int block = 0; block < 2; ++block) w.scales[row * 2 + block] = std::ldexp(1.0f, row);
  }
  const auto got = run(x.view(), w.view(), {0, 5}, {512, 576});
  for (float value : got) ASSERT_EQ(value, 2.0f * 256 * 16);
}

TEST_P(TileGemmTest, S01_ScaleOrientationShowsInTheResult) {
  const ConstantActivations x(4, 512, 1.0f);
  ConstantWeight w(512, 512, 1.0f);
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) w.scales[i * 4 + j] = std::ldexp(1.0f, i);
  }
  for (int i = 0; i < 4; ++i) {
    for (float value : run(x.view(), w.view(), {0, 4}, {i * 128, (i + 1) * 128})) {
      ASSERT_EQ(value, 512.0f * std::ldexp(1.0f, i));
    }
  }
  // The same numbers stated as their transpose, by strides.
  WeightView transposed = w.view();
  transposed.scale_row_stride = 1;
  transposed.scale_block_stride = 4;
  for (float value : run(x.view(), transposed, {0, 4}, {0, 128})) ASSERT_EQ(value, 128.0f * 15);
}

TEST_P(TileGemmTest, S08_S09_StridedOperandsGiveTheBitsOfDenseOnes) {
  const RandomActivations x(20, 512, 3);
  const RandomWeight w(64, 512, 4);
  ActivationView x_part = x.view();  // columns 128..383 of wider rows
  x_part.codes += 128;
  x_part.scales += 1;
  x_part.depth = 256;
  WeightView w_part = w.view();
  w_part.codes += 128;
  w_part.scales += 1;
  w_part.depth = 256;
  std::vector<E4m3> x_codes, w_codes;
  std::vector<float> x_scales, w_scales;
  for (int r = 0; r < 20; ++r) {
    x_codes.insert(x_codes.end(), x_part.codes + r * 512, x_part.codes + r * 512 + 256);
    x_scales.insert(x_scales.end(), x_part.scales + r * 4, x_part.scales + r * 4 + 2);
  }
  for (int r = 0; r < 64; ++r)
    w_codes.insert(w_codes.end(), w_part.codes + r * 512, w_part.codes + r * 512 + 256);
  w_scales.assign(w_part.scales, w_part.scales + 2);
  const ActivationView x_dense{x_codes.data(), 20, 256, 256, x_scales.data(), 2, 1};
  const WeightView w_dense{w_codes.data(), 64, 256, 256, w_scales.data(), 2, 1};
  EXPECT_EQ(run(x_part, w_part, {0, 20}, {0, 64}), run(x_dense, w_dense, {0, 20}, {0, 64}));
}

TEST_P(TileGemmTest, N05_ARowsBitsDoNotDependOnTheTile) {
  const RandomActivations x(256, 640, 5);
  const RandomWeight w(256, 640, 6);
  const auto whole = run(x.view(), w.view(), {0, 256}, {0, 256});
  for (std::int64_t row : {0, 5, 100, 255}) {
    for (std::int64_t height : {1, 2, 3, 5, 8, 13, 32}) {
      const std::int64_t begin = std::min(row, 256 - height);
      for (Range cols : {Range{0, 256}, Range{128, 168}, Range{128, 256}}) {
        const auto part = run(x.view(), w.view(), {begin, begin + height}, cols);
        ASSERT_EQ(std::memcmp(part.data() + (row - begin) * cols.size(),
                              whole.data() + row * 256 + cols.begin, cols.size() * 4),
                  0)
            << "row " << row << " in a tile of " << height;
      }
    }
  }
}

TEST_P(TileGemmTest, EveryCodeIsWidenedExactly) {
  for (int code = 0; code < 256; ++code) {
    ConstantActivations x(1, 128, 0.0f);
    ConstantWeight w(8, 128, 1.0f);
    x.codes[77] = E4m3{static_cast<std::uint8_t>(code)};
    for (float value : run(x.view(), w.view(), {0, 1}, {0, 8})) {
      const float want = to_float(x.codes[77]);
      ASSERT_TRUE(value == want || (std::isnan(value) && std::isnan(want))) << code;
    }
    x.codes[77] = {0x38};  // 1
    w.codes[3 * 128 + 77] = E4m3{static_cast<std::uint8_t>(code)};
    const float value = run(x.view(), w.view(), {0, 1}, {0, 8})[3];
    const float want = to_float(w.codes[3 * 128 + 77]);
    ASSERT_TRUE(value == want || (std::isnan(value) && std::isnan(want))) << code;
  }
}

TEST_P(TileGemmTest, ANaNStaysInItsRow) {
  ConstantActivations x(12, 128, 1.0f);
  const ConstantWeight w(32, 128, 2.0f);
  x.codes[3 * 128 + 7] = {0x7F};
  const auto got = run(x.view(), w.view(), {0, 12}, {0, 32});
  for (int r = 0; r < 12; ++r) {
    for (int c = 0; c < 32; ++c) {
      if (r == 3) {
        ASSERT_TRUE(std::isnan(got[r * 32 + c]));
      } else {
        ASSERT_EQ(got[r * 32 + c], 256.0f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, TileGemmTest, testing::ValuesIn(supported_tile_gemms()),
                         [](const auto& p) { return std::string(p.param.name); });

TEST(FindTileGemm, TakesTheBestByDefaultAndRefusesUnknownNames) {
  EXPECT_EQ(find_tile_gemm("").run, supported_tile_gemms().front().run);
  EXPECT_EQ(find_tile_gemm(std::string(supported_tile_gemms().back().name)).run,
            supported_tile_gemms().back().run);
  try {
    find_tile_gemm("avx9");
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("'avx9'"));
    EXPECT_THAT(e.what(), HasSubstr(std::string(supported_tile_gemms().front().name)));
  }
}

}  // namespace
}  // namespace rowband::host
