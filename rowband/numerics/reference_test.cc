#include "rowband/numerics/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "rowband/base/error.h"
#include "rowband/numerics/numerics_test_util.h"
#include "rowband/numerics/quantize.h"

namespace rowband {
namespace {

// A quantised operand that owns its memory, dense and with row-major scales.
struct Operand {
  Operand(std::int64_t rows_in, std::int64_t depth_in, std::int64_t scale_rows)
      : rows(rows_in),
        depth(depth_in),
        codes(rows * depth),
        scales(scale_rows * scale_blocks(depth), 1.0f) {}

  ActivationView x() const {
    return {codes.data(), rows, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
  WeightView w() const {
    return {codes.data(), rows, depth, depth, scales.data(), scale_blocks(depth), 1};
  }

  std::int64_t rows, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;
};

Operand activations(std::int64_t rows, std::int64_t depth) { return {rows, depth, rows}; }
Operand weights(std::int64_t cols, std::int64_t depth) { return {cols, depth, scale_blocks(cols)}; }

// Any finite code; scales between 1 and 2 with all their fraction bits in use.
void randomise(Operand& operand, std::mt19937& random) {
  std::uniform_int_distribution<int> magnitude(0, 0x7E), sign(0, 1);
  std::uniform_real_distribution<float> scale(1.0f, 2.0f);
  for (E4m3& code : operand.codes) {
    code.bits = static_cast<std::uint8_t>(magnitude(random) | sign(random) << 7);
  }
  for (float& value : operand.scales) value = scale(random);
}

std::vector<std::int64_t> all_rows(const Operand& x) {
  std::vector<std::int64_t> rows(x.rows);
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

std::vector<double> product(const ActivationView& x, const WeightView& w, int threads = 1) {
  std::vector<std::int64_t> rows(x.rows);
  std::iota(rows.begin(), rows.end(), 0);
  return reference_rows({&x, 1}, {&w, 1}, nullptr, rows, threads);
}

double real(const ActivationView& x, std::int64_t m, std::int64_t k) {
  return testing::e4m3_by_specification(x.codes[m * x.row_stride + k].bits) *
         x.scales[m * x.scale_row_stride + k / 128 * x.scale_block_stride];
}

double real(const WeightView& w, std::int64_t n, std::int64_t k) {
  return testing::e4m3_by_specification(w.codes[n * w.row_stride + k].bits) *
         w.scales[n / 128 * w.scale_row_stride + k / 128 * w.scale_block_stride];
}

TEST(Reference, MatchesTheDefinitionOnThreeRanksForAnyRowsAndThreads) {
  constexpr std::int64_t kRows = 70, kCols = 264;
  std::mt19937 random(7);
  std::vector<Operand> x, w;
  for (const std::int64_t depth : {128, 384, 256}) {
    x.push_back(activations(kRows, depth));
    w.push_back(weights(kCols, depth));
    randomise(x.back(), random);
    randomise(w.back(), random);
  }
  std::vector<ActivationView> xs;
  std::vector<WeightView> ws;
  for (std::size_t rank = 0; rank < x.size(); ++rank) {
    xs.push_back(x[rank].x());
    ws.push_back(w[rank].w());
  }
  std::vector<Bf16> bias;
  for (int n = 0; n < kCols; ++n) bias.push_back(to_bf16(static_cast<float>(n) * 1000.0f));
  std::vector<std::int64_t> rows = all_rows(x[0]);
  std::shuffle(rows.begin(), rows.end(), random);
  rows.push_back(rows[3]);  // twice is fine

  const std::vector<double> got = reference_rows(xs, ws, bias.data(), rows, 1);
  ASSERT_EQ(got.size(), rows.size() * kCols);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::int64_t n = 0; n < kCols; ++n) {
      double want = to_float(bias[n]), magnitude = std::fabs(want);
      for (std::size_t rank = 0; rank < xs.size(); ++rank) {
        for (std::int64_t k = 0; k < xs[rank].depth; ++k) {
          const double term = real(xs[rank], rows[i], k) * real(ws[rank], n, k);
          want += term;
          magnitude += std::fabs(term);
        }
      }
      ASSERT_NEAR(got[i * kCols + n], want, 1e-13 * magnitude) << "row " << rows[i] << ", " << n;
    }
  }
  EXPECT_EQ(reference_rows(xs, ws, bias.data(), rows, 3), got);
  EXPECT_EQ(reference_rows(xs, ws, bias.data(), rows, 100), got);
}

// Partial sums of 2^18 next to terms of 2^-18: what fp32 accumulation would lose.
TEST(Reference, SumsOfABlockAreExact) {
  Operand x = activations(1, 128), w = weights(8, 128);
  for (std::int64_t k = 0; k < 128; ++k) {
    x.codes[k] = to_e4m3(k < 127 ? 448.0f : 0x1p-9f);
    w.codes[k] = to_e4m3(k < 127 ? 448.0f : 0x1p-9f);
  }
  EXPECT_EQ(product(x.x(), w.w())[0], 127 * 448.0 * 448.0 + 0x1p-18);
}

TEST(Reference, N01_BiasIsAddedOnceAcrossTwoRanks) {
  constexpr std::int64_t kCols = 8;  // the case has 3; the rest is zero
  std::vector<Operand> x(2, activations(2, 128)), w(2, weights(kCols, 128));
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Bf16> x_slice(2 * 128);
    std::vector<float> w_slice(kCols * 128);
    for (int i = 0; i < 2; ++i) {
      for (int m = 0; m < 2; ++m) {
        x_slice[m * 128 + i] = to_bf16(static_cast<float>(4 * m + 2 * rank + i + 1));
      }
      for (int n = 0; n < 3; ++n)
        w_slice[n * 128 + i] = static_cast<float>(4 * n + 2 * rank + i + 1);
    }
    quantize_activations(x_slice.data(), 2, 128, 128, ScaleFormat::kUe8m0, x[rank].codes.data(),
                         128, x[rank].scales.data());
    quantize_weights(w_slice.data(), kCols, 128, 128, ScaleFormat::kUe8m0, w[rank].codes.data(),
                     w[rank].scales.data());
  }
  std::vector<Bf16> bias(kCols);
  for (int n = 0; n < 3; ++n) bias[n] = to_bf16(100.0f * static_cast<float>(n + 1));
  const ActivationView xs[] = {x[0].x(), x[1].x()};
  const WeightView ws[] = {w[0].w(), w[1].w()};
  const std::vector<double> got = reference_rows(xs, ws, bias.data(), all_rows(x[0]), 2);
  EXPECT_EQ(got, (std::vector<double>{130, 270, 410, 0, 0, 0, 0, 0,  //
                                      170, 374, 578, 0, 0, 0, 0, 0}));
  EXPECT_EQ(to_float(to_bf16(static_cast<float>(got[kCols + 2]))), 576.0f);
}

TEST(Reference, Q01_ZerosGivePlusZero) {
  Operand x = activations(4, 256), w = weights(8, 256);
  std::mt19937 random(1);
  randomise(w, random);
  for (const double value : product(x.x(), w.w())) {
    EXPECT_EQ(value, 0.0);
    EXPECT_FALSE(std::signbit(value));
  }
}

TEST(Reference, Q11_NegativeZeroCodeAddsNothing) {
  Operand x = activations(1, 128), w = weights(8, 128);
  x.codes.assign(128, to_e4m3(1.0f));
  w.codes.assign(w.codes.size(), E4m3{0x80});
  w.codes[5] = E4m3{0x7E};
  const std::vector<double> got = product(x.x(), w.w());
  EXPECT_EQ(got[0], 448.0);
  EXPECT_EQ(got[1], 0.0);
}

TEST(Reference, NanStaysInItsRow) {
  Operand x = activations(3, 128), w = weights(8, 128);
  std::mt19937 random(2);
  randomise(x, random);
  randomise(w, random);
  x.codes[128 + 77] = E4m3{0x7F};
  const std::vector<double> got = product(x.x(), w.w());
  for (int i = 0; i < 3 * 8; ++i) EXPECT_EQ(std::isnan(got[i]), i / 8 == 1) << i;
}

// The same 4 x 4 numbers read row-major and block-major: a transposed scale would show at once.
TEST(Reference, S01_ScaleOrientationFollowsTheStrides) {
  Operand x = activations(1, 512), w = weights(512, 512);
  x.codes.assign(x.codes.size(), to_e4m3(1.0f));
  w.codes.assign(w.codes.size(), to_e4m3(1.0f));
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) w.scales[i * 4 + j] = std::ldexp(1.0f, i);
  }
  const std::vector<double> row_major = product(x.x(), w.w());
  WeightView transposed = w.w();
  transposed.scale_row_stride = 1;
  transposed.scale_block_stride = 4;
  const std::vector<double> block_major = product(x.x(), transposed);
  for (int n = 0; n < 512; ++n) {
    EXPECT_EQ(row_major[n], std::ldexp(512.0, n / 128)) << n;
    EXPECT_EQ(block_major[n], 128.0 * (1 + 2 + 4 + 8)) << n;
  }
}

// A copy of `dense` inside a wider matrix: NaN codes and NaN scales around it.
struct Padded {
  Padded(const Operand& dense, std::int64_t first_col, std::int64_t row_stride_in)
      : row_stride(row_stride_in), first(first_col), codes(dense.rows * row_stride, E4m3{0x7F}) {
    for (std::int64_t row = 0; row < dense.rows; ++row) {
      std::copy_n(dense.codes.begin() + row * dense.depth, dense.depth,
                  codes.begin() + row * row_stride + first);
    }
    // Block-major, every second element, 3 of padding behind each K block.
    const std::int64_t blocks = scale_blocks(dense.depth);
    const std::int64_t scale_rows = std::ssize(dense.scales) / blocks;
    block_stride = 2 * scale_rows + 3;
    scales.assign(blocks * block_stride, std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t i = 0; i < std::ssize(dense.scales); ++i) {
      scales[i / blocks * 2 + i % blocks * block_stride] = dense.scales[i];
    }
  }

  template <typename View>
  View apply(View view) const {
    view.codes = codes.data() + first;
    view.row_stride = row_stride;
    view.scales = scales.data();
    view.scale_row_stride = 2;
    view.scale_block_stride = block_stride;
    return view;
  }

  std::int64_t row_stride, first, block_stride = 0;
  std::vector<E4m3> codes;
  std::vector<float> scales;
};

class StridedReference : public ::testing::Test {
 protected:
  StridedReference() : x_(activations(9, 384)), w_(weights(136, 384)) {
    std::mt19937 random(3);
    randomise(x_, random);
    randomise(w_, random);
    dense_ = product(x_.x(), w_.w());
  }
  Operand x_, w_;
  std::vector<double> dense_;
};

TEST_F(StridedReference, S08_ColumnsOfAWiderActivationEqualADenseCopy) {
  const Padded padded(x_, /*first_col=*/64, /*row_stride=*/64 + 384 + 1);
  EXPECT_EQ(product(padded.apply(x_.x()), w_.w()), dense_);
}

TEST_F(StridedReference, S09_PaddedWeightRowsEqualADenseCopy) {
  const Padded padded(w_, /*first_col=*/0, /*row_stride=*/384 + 256);
  EXPECT_EQ(product(x_.x(), padded.apply(w_.w())), dense_);
}

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

TEST(Reference, RefusesShapesThatDisagree) {
  const Operand x = activations(2, 128), deeper = activations(2, 256), more = activations(3, 128);
  const Operand w = weights(8, 128), wider = weights(16, 128);
  const auto call = [](std::vector<ActivationView> xs, std::vector<WeightView> ws,
                       std::vector<std::int64_t> rows, int threads) {
    return [=] { reference_rows(xs, ws, nullptr, rows, threads); };
  };
  expect_refused(call({}, {}, {}, 1),
                 "0 activation views and 0 weight views, must be one of each per rank");
  expect_refused(call({x.x()}, {w.w(), w.w()}, {}, 1),
                 "1 activation views and 2 weight views, must be one of each per rank");
  expect_refused(call({x.x()}, {w.w()}, {}, 0), "threads is 0, must be >= 1");
  expect_refused(call({x.x(), deeper.x()}, {w.w(), w.w()}, {}, 1),
                 "rank 1: activation depth is 256 and weight depth is 128, they must be equal");
  expect_refused(call({x.x(), more.x()}, {w.w(), w.w()}, {}, 1),
                 "rank 1: activation rows is 3, must be 2 as on rank 0");
  expect_refused(call({x.x(), x.x()}, {w.w(), wider.w()}, {}, 1),
                 "rank 1: weight cols is 16, must be 8 as on rank 0");
  expect_refused(call({x.x()}, {w.w()}, {0, 2}, 1), "rows_wanted[1] is 2, must be in [0, 2)");
  expect_refused(call({x.x()}, {w.w()}, {-1}, 1), "rows_wanted[0] is -1, must be in [0, 2)");
  WeightView bad = w.w();
  bad.row_stride = 1;
  expect_refused(call({x.x()}, {bad}, {}, 1),
                 "rank 0: weight row_stride is 1, must be at least the depth, 128");
}

TEST(Reference, NoRowsGiveAnEmptyResult) {
  const Operand w = weights(8, 128);
  const ActivationView x{.depth = 128};
  EXPECT_TRUE(product(x, w.w(), /*threads=*/4).empty());
}

TEST(RelativeL2, IsTheNormOfTheDifferenceOverTheNormOfWhatIsWanted) {
  const std::vector<Bf16> got = {to_bf16(3.0f), to_bf16(8.0f)};
  EXPECT_DOUBLE_EQ(relative_l2(got, std::vector<double>{3.0, 4.0}), 0.8);
  EXPECT_DOUBLE_EQ(relative_l2(got, std::vector<Bf16>{to_bf16(3.0f), to_bf16(4.0f)}), 0.8);
  EXPECT_EQ(relative_l2(got, got), 0.0);
}

TEST(RelativeL2, NanAndZerosAndInfinitiesPassNoThreshold) {
  const std::vector<Bf16> zeros(4), ones(4, to_bf16(1.0f));
  std::vector<Bf16> with_nan = ones, with_infinity = ones;
  with_nan[2] = Bf16{0x7FC0};
  with_infinity[2] = Bf16{0x7F80};
  EXPECT_EQ(relative_l2(zeros, zeros), 0.0);
  EXPECT_TRUE(std::isinf(relative_l2(ones, zeros)));
  EXPECT_TRUE(std::isnan(relative_l2(with_nan, ones)));
  EXPECT_TRUE(std::isnan(relative_l2(ones, with_nan)));
  EXPECT_TRUE(std::isnan(relative_l2(with_nan, with_nan)));
  EXPECT_TRUE(std::isinf(relative_l2(with_infinity, ones)));
  EXPECT_TRUE(std::isnan(relative_l2(ones, with_infinity)));
  EXPECT_EQ(relative_l2(std::vector<Bf16>{}, std::vector<double>{}), 0.0);
}

TEST(RelativeL2, RefusesSizesThatDiffer) {
  expect_refused([] { relative_l2(std::vector<Bf16>(2), std::vector<double>(3)); },
                 "cannot compare 2 values with 3: sizes must be equal");
}

#ifdef ROWBAND_CAN_FLUSH_DENORMALS
TEST(Reference, ResultsDoNotDependOnTheCallersFloatEnvironment) {
  Operand x = activations(5, 256), w = weights(8, 256);
  std::mt19937 random(4);
  randomise(x, random);
  randomise(w, random);
  for (float& scale : x.scales) scale = 0x1.23p-130f;  // subnormal: read as zero under DAZ
  const std::vector<Bf16> bias(8, Bf16{0x0003});
  const std::vector<Bf16> tiny(4, Bf16{0x0003}), other(4, Bf16{0x0004});
  const ActivationView xs[] = {x.x()};
  const WeightView ws[] = {w.w()};
  const std::vector<double> want = reference_rows(xs, ws, bias.data(), all_rows(x), 1);
  const double want_distance = relative_l2(tiny, other);
  std::vector<double> got, got_two_threads;
  double got_distance = 0.0;
  {
    const testing::ScopedHostileFloatEnvironment hostile;
    got = reference_rows(xs, ws, bias.data(), all_rows(x), 1);
    got_two_threads = reference_rows(xs, ws, bias.data(), all_rows(x), 2);
    got_distance = relative_l2(tiny, other);
  }
  EXPECT_NE(want[0], 0.0);
  EXPECT_EQ(got, want);
  EXPECT_EQ(got_two_threads, want);
  EXPECT_EQ(want_distance, 0.25);
  EXPECT_EQ(got_distance, want_distance);
}
#endif

}  // namespace
}  // namespace rowband
