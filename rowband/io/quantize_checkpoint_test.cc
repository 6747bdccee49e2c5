// quantize_checkpoint and make_checkpoint.
#include <algorithm>
#include <cmath>
#include <limits>

#include "rowband/io/checkpoint.h"
#include "rowband/io/checkpoint_test_support.h"
#include "rowband/io/make_checkpoint.h"

namespace rowband {
namespace {

using test::CheckpointFile;
using test::expect_error;
using test::TempDir;

// Values that differ by place and are exact in bf16.
std::vector<float> test_values(std::int64_t count) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<float>((i * 37) % 255 - 127) / 64.0f);
  }
  return values;
}

std::vector<Bf16> to_bf16s(const std::vector<float>& values) {
  std::vector<Bf16> out;
  for (const float value : values) out.push_back(to_bf16(value));
  return out;
}

// What quantize_weights itself makes of the matrix.
Fp8Weight quantised(const std::vector<float>& values, std::int64_t cols, std::int64_t depth,
                    ScaleFormat format) {
  Fp8Weight weight;
  weight.codes.resize(values.size());
  weight.scales.resize(static_cast<std::size_t>(scale_blocks(cols) * scale_blocks(depth)));
  quantize_weights(values.data(), cols, depth, depth, format, weight.codes.data(),
                   weight.scales.data());
  return weight;
}

TEST(QuantizeCheckpoint, MatricesAreQuantisedAndTheRestIsCopied) {
  constexpr std::int64_t kCols = 300;  // two whole bands and a short one
  constexpr std::int64_t kDepth = 256;
  const auto values = test_values(kCols * kDepth);
  const std::vector<float> norm{1, 2, 3};
  for (const ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    const TempDir dir;
    CheckpointFile()
        .add("a.weight", DType::kF32, {kCols, kDepth}, values)
        .add("b.weight", DType::kBf16, {kCols, kDepth}, to_bf16s(values))
        .add("norm.weight", DType::kF32, {3}, norm)
        .add("a.bias", DType::kF32, {3}, norm)
        .add("table", DType::kF32, {1, 3}, norm)
        .add_codes("old.weight", 128, 128)
        .add_scales("old.weight_scale_inv", 1, 1)
        .write(dir / "source.safetensors");
    quantize_checkpoint(Checkpoint::open(dir / "source.safetensors"), {}, format,
                        dir / "out.safetensors");
    const Checkpoint out = Checkpoint::open(dir / "out.safetensors");
    const Fp8Weight wanted = quantised(values, kCols, kDepth, format);
    for (const char* name : {"a", "b"}) {
      const Fp8Weight got = read_weight_slice(out, name, 0, 1);
      EXPECT_EQ(got.codes, wanted.codes) << name;
      EXPECT_EQ(got.scales, wanted.scales) << name;
      EXPECT_EQ(got.scale_format, format);
    }
    const bool ue8m0 = format == ScaleFormat::kUe8m0;
    EXPECT_EQ(out.contains("a.scale"), ue8m0);
    EXPECT_EQ(out.contains("a.weight_scale_inv"), !ue8m0);
    for (const char* name : {"norm.weight", "a.bias", "table"}) {
      EXPECT_EQ(out.tensor(name).dtype, DType::kF32) << name;
      EXPECT_TRUE(std::ranges::equal(out.tensor(name).data, std::as_bytes(std::span(norm))));
    }
    EXPECT_EQ(read_weight_slice(out, "old", 0, 1).codes.size(), 128u * 128u);
    EXPECT_EQ(out.names().size(), 9u);
  }
}

TEST(QuantizeCheckpoint, OnlyTheNamedMatrices) {
  const TempDir dir;
  CheckpointFile()
      .add("a.weight", DType::kF32, {128, 128}, test_values(128 * 128))
      .add("b.weight", DType::kF32, {128, 128}, test_values(128 * 128))
      .add("norm.weight", DType::kF32, {3}, test_values(3))
      .write(dir / "source.safetensors");
  const Checkpoint source = Checkpoint::open(dir / "source.safetensors");
  const auto destination = dir / "out.safetensors";
  quantize_checkpoint(source, {"b", "b.weight"}, ScaleFormat::kFp32, destination);
  const Checkpoint out = Checkpoint::open(destination);
  EXPECT_EQ(out.tensor("a.weight").dtype, DType::kF32);
  EXPECT_EQ(out.tensor("b.weight").dtype, DType::kF8E4m3);
  EXPECT_EQ(out.names().size(), 4u);
  expect_error(ErrorCode::kFormat, {"source.safetensors", "'c.weight'"},
               [&] { quantize_checkpoint(source, {"c"}, ScaleFormat::kFp32, destination); });
  expect_error(ErrorCode::kFormat, {"'norm.weight'", "[3]", "F32 or BF16 matrices"},
               [&] { quantize_checkpoint(source, {"norm"}, ScaleFormat::kFp32, destination); });
}

TEST(QuantizeCheckpoint, CanReplaceItsOwnSource) {
  const TempDir dir;
  const auto path = dir / "m.safetensors";
  const auto values = test_values(128 * 128);
  CheckpointFile().add("a.weight", DType::kF32, {128, 128}, values).write(path);
  quantize_checkpoint(Checkpoint::open(path), {}, ScaleFormat::kFp32, path);
  EXPECT_EQ(read_weight_slice(Checkpoint::open(path), "a", 0, 1).codes,
            quantised(values, 128, 128, ScaleFormat::kFp32).codes);
}

TEST(QuantizeCheckpoint, Q12_ValuesThatAreNotFiniteAreRefusedAndLeaveNoFile) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const TempDir dir;
    auto values = test_values(200 * 128);
    values[150 * 128 + 7] = bad;
    CheckpointFile().add("a.weight", DType::kF32, {200, 128}, values).write(dir / "m.safetensors");
    expect_error(ErrorCode::kFormat, {"m.safetensors", "'a.weight'", "[150, 7]"}, [&] {
      quantize_checkpoint(Checkpoint::open(dir.path()), {}, ScaleFormat::kFp32,
                          dir / "out.safetensors");
    });
    EXPECT_EQ(dir.listing(), std::vector<std::string>{"m.safetensors"});
  }
}

TEST(MakeCheckpoint, SameSpecSameBytes) {
  const TempDir dir;
  RandomLinear linear{.name = "x", .cols = 200, .depth = 384, .bias = true, .seed = 7};
  make_checkpoint(dir / "1.safetensors", linear);
  make_checkpoint(dir / "2.safetensors", linear);
  EXPECT_EQ(test::read_file(dir / "1.safetensors"), test::read_file(dir / "2.safetensors"));
  linear.seed = 8;
  make_checkpoint(dir / "3.safetensors", linear);
  EXPECT_NE(test::read_file(dir / "1.safetensors"), test::read_file(dir / "3.safetensors"));
}

TEST(MakeCheckpoint, WeightsAreBellShapedWithDeviationOneOverRootK) {
  for (const ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    const TempDir dir;
    constexpr std::int64_t kCols = 300;
    constexpr std::int64_t kDepth = 1024;
    make_checkpoint(dir / "m.safetensors", {.name = "x",
                                            .cols = kCols,
                                            .depth = kDepth,
                                            .scale_format = format,
                                            .bias = true,
                                            .seed = 1});
    const Checkpoint checkpoint = Checkpoint::open(dir.path());
    const Fp8Weight weight = read_weight_slice(checkpoint, "x", 0, 1);
    EXPECT_EQ(weight.scale_format, format);
    double sum = 0;
    double squares = 0;
    double magnitudes = 0;
    for (std::int64_t n = 0; n < kCols; ++n) {
      for (std::int64_t k = 0; k < kDepth; ++k) {
        const double value = to_float(weight.codes[n * kDepth + k]) *
                             weight.scales[n / 128 * (kDepth / 128) + k / 128] *
                             std::sqrt(double{kDepth});
        sum += value;
        squares += value * value;
        magnitudes += std::abs(value);
      }
    }
    const auto count = static_cast<double>(kCols * kDepth);
    EXPECT_NEAR(sum / count, 0.0, 0.01);
    EXPECT_NEAR(squares / count, 1.0, 0.02);
    EXPECT_NEAR(magnitudes / count, std::sqrt(2 / M_PI), 0.01);  // 0.866 were they uniform
    const auto bias = read_bias(checkpoint, "x", kCols);
    ASSERT_EQ(bias.size(), static_cast<std::size_t>(kCols));
    double bias_squares = 0;
    for (const Bf16 b : bias) bias_squares += double{to_float(b)} * to_float(b);
    EXPECT_NEAR(bias_squares / kCols, 1.0, 0.25);
  }
}

TEST(MakeCheckpoint, RowsAndColumnsAreNotCopiesOfEachOther) {
  const TempDir dir;
  make_checkpoint(dir / "m.safetensors", {.name = "x", .cols = 256, .depth = 256});
  const Fp8Weight weight = read_weight_slice(Checkpoint::open(dir.path()), "x", 0, 1);
  const auto row = [&](std::int64_t n) {
    return std::span(weight.codes).subspan(static_cast<std::size_t>(n) * 256, 256);
  };
  std::int64_t same = 0;
  for (std::int64_t n = 1; n < 256; ++n) {
    same += std::ranges::equal(row(n), row(0)) || std::ranges::equal(row(n), row(n - 1)) ? 1 : 0;
  }
  EXPECT_EQ(same, 0);
}

TEST(MakeCheckpoint, ImpossibleSpecsAreRefused) {
  const TempDir dir;
  const auto refused = [&](const RandomLinear& linear, const std::vector<std::string>& words) {
    expect_error(ErrorCode::kInvalidArgument, words,
                 [&] { make_checkpoint(dir / "m.safetensors", linear); });
  };
  refused({.name = "", .cols = 1, .depth = 1}, {"needs a name"});
  refused({.name = "x", .cols = 0, .depth = 128}, {"[0, 128]"});
  refused({.name = "x", .cols = 8, .depth = -1}, {"[8, -1]"});
  refused({.name = "x", .cols = std::int64_t{1} << 40, .depth = std::int64_t{1} << 40},
          {"fits 64 bits"});
  EXPECT_TRUE(dir.listing().empty());
}

}  // namespace
}  // namespace rowband
