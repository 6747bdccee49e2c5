// read_weight_slice, read_bias and why_not_divisible.
#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "rowband/io/checkpoint.h"
#include "rowband/io/checkpoint_test_support.h"

namespace rowband {
namespace {

using test::CheckpointFile;
using test::expect_error;
using test::TempDir;
using test::write_file;

Checkpoint checkpoint_of(const TempDir& dir, const CheckpointFile& file) {
  file.write(dir / "m.safetensors");
  return Checkpoint::open(dir.path());
}

Fp8Weight read_whole(const CheckpointFile& file, const std::string& name = "x") {
  const TempDir dir;
  return read_weight_slice(checkpoint_of(dir, file), name, 0, 1);
}

void expect_refused(const CheckpointFile& file, const std::vector<std::string>& words,
                    ErrorCode code = ErrorCode::kFormat) {
  expect_error(code, words, [&] { read_whole(file); });
}

TEST(WeightSlice, EveryRankGetsItsColumnsAndScales) {
  constexpr std::int64_t kCols = 256;
  constexpr std::int64_t kDepth = 512;
  std::vector<std::uint8_t> codes;
  for (std::int64_t n = 0; n < kCols; ++n) {
    for (std::int64_t k = 0; k < kDepth; ++k) {
      codes.push_back(static_cast<std::uint8_t>((n * 31 + k * 7) % 127));
    }
  }
  const TempDir dir;
  const Checkpoint checkpoint =
      checkpoint_of(dir, CheckpointFile()
                             .add("x.weight", DType::kF8E4m3, {kCols, kDepth}, codes)
                             .add_scales("x.weight_scale_inv", 2, 4));
  for (const int world : {1, 2, 4}) {
    for (int rank = 0; rank < world; ++rank) {
      const Fp8Weight weight =
          read_weight_slice(checkpoint, rank % 2 == 0 ? "x" : "x.weight", rank, world);
      ASSERT_EQ(weight.cols, kCols);
      ASSERT_EQ(weight.depth, kDepth / world);
      ASSERT_EQ(weight.depth_begin, rank * kDepth / world);
      ASSERT_EQ(weight.total_depth, kDepth);
      EXPECT_EQ(weight.scale_format, ScaleFormat::kFp32);
      const WeightView view = weight.view();
      for (std::int64_t n = 0; n < kCols; n += 51) {
        for (std::int64_t k = 0; k < view.depth; ++k) {
          const std::int64_t whole_k = weight.depth_begin + k;
          ASSERT_EQ(view.codes[n * view.row_stride + k].bits, codes[n * kDepth + whole_k]);
          ASSERT_EQ(
              view.scales[n / 128 * view.scale_row_stride + k / 128 * view.scale_block_stride],
              1.0f + static_cast<float>(n / 128 * 4 + whole_k / 128));
        }
      }
    }
  }
  expect_error(ErrorCode::kInvalidArgument, {"rank 4", "from 0 to 3"},
               [&] { read_weight_slice(checkpoint, "x", 4, 4); });
  expect_error(ErrorCode::kInvalidArgument, {"rank -1"},
               [&] { read_weight_slice(checkpoint, "x", -1, 4); });
  expect_error(ErrorCode::kInvalidArgument,
               {"m.safetensors", "'x.weight'", "[256, 512]", "3 ranks"},
               [&] { read_weight_slice(checkpoint, "x", 0, 3); });
}

TEST(WeightSlice, E8m0ScalesAreReadUnderEitherName) {
  for (const char* name : {"x.scale", "x.weight_scale_inv"}) {
    const Fp8Weight weight =
        read_whole(CheckpointFile()
                       .add_codes("x.weight", 128, 512)
                       .add<std::uint8_t>(name, DType::kF8E8m0, {1, 4}, {127, 128, 0, 254}));
    EXPECT_EQ(weight.scale_format, ScaleFormat::kUe8m0);
    EXPECT_EQ(weight.scales, (std::vector<float>{1.0f, 2.0f, 0x1p-127f, 0x1p127f}));
  }
}

TEST(WeightSlice, S01_TransposedScalesAreRefusedWithBothShapes) {
  expect_refused(
      CheckpointFile().add_codes("x.weight", 512, 6144).add_scales("x.weight_scale_inv", 48, 4),
      {"'x.weight_scale_inv'", "[4, 48]", "[48, 4]", "transposed"});
}

TEST(WeightSlice, S01_SquareScalesKeepTheirOrientation) {
  std::vector<float> scales;
  for (int i = 0; i < 4; ++i) scales.insert(scales.end(), 4, std::ldexp(1.0f, i));
  const Fp8Weight weight = read_whole(CheckpointFile()
                                          .add_codes("x.weight", 512, 512)
                                          .add("x.weight_scale_inv", DType::kF32, {4, 4}, scales));
  const WeightView view = weight.view();
  for (std::int64_t n = 0; n < 512; n += 128) {
    for (std::int64_t k = 0; k < 512; k += 128) {
      EXPECT_EQ(view.scales[n / 128 * view.scale_row_stride + k / 128 * view.scale_block_stride],
                std::ldexp(1.0f, static_cast<int>(n / 128)));
    }
  }
}

TEST(WeightSlice, S03_Bf16ScalesAreWidened) {
  std::vector<std::uint16_t> scales(16 * 48, 0x3F81);
  scales[50] = 0x0001;  // the smallest bf16, exact in fp32
  const Fp8Weight weight =
      read_whole(CheckpointFile()
                     .add_codes("x.weight", 2048, 6144)
                     .add("x.weight_scale_inv", DType::kBf16, {16, 48}, scales));
  EXPECT_EQ(weight.scales[0], 1.0078125f);
  EXPECT_EQ(weight.scales[50], 0x1p-133f);
  EXPECT_EQ(weight.scale_format, ScaleFormat::kFp32);
}

TEST(WeightSlice, S04_MissingScaleIsNamedWithTheNamesTried) {
  expect_refused(CheckpointFile().add_codes("x.weight", 128, 128),
                 {"m.safetensors", "'x.weight'", "'x.weight_scale_inv'", "'x.scale'"});
}

TEST(WeightSlice, TwoScaleTensorsAreRefused) {
  expect_refused(CheckpointFile()
                     .add_codes("x.weight", 128, 128)
                     .add_scales("x.weight_scale_inv", 1, 1)
                     .add_scales("x.scale", 1, 1),
                 {"both", "'x.weight_scale_inv'", "'x.scale'"});
}

TEST(WeightSlice, S06_BlockSizeIsStatedAndNeverInferred) {
  std::vector<float> scales;
  for (int i = 0; i < 8; ++i) scales.push_back(std::ldexp(1.0f, i));
  const auto file = CheckpointFile()
                        .add_codes("x.weight", 1000, 128)
                        .add("x.weight_scale_inv", DType::kF32, {8, 1}, scales);
  for (const bool stated : {true, false}) {
    const TempDir dir;
    if (stated) {
      write_file(dir / "config.json", R"({"quantization_config":{"weight_block_size":[128,128]}})");
    }
    const Checkpoint checkpoint = checkpoint_of(dir, file);
    const Fp8Weight weight = read_weight_slice(checkpoint, "x", 0, 1);
    EXPECT_EQ(weight.scales, scales);  // row n uses scale n / 128: 0 for rows 125 to 127
    EXPECT_EQ(checkpoint.notes().empty(), stated);
    if (!stated) {
      EXPECT_NE(checkpoint.notes()[0].find("128x128"), std::string::npos);
    }
  }
}

TEST(WeightSlice, A08_OtherBlockSizesAreRefused) {
  const TempDir dir;
  write_file(dir / "config.json", R"({"quantization_config":{"weight_block_size":[32,32]}})");
  // Scales that fit 128x128 blocks do not make it right.
  const Checkpoint checkpoint =
      checkpoint_of(dir, CheckpointFile()
                             .add_codes("x.weight", 128, 128)
                             .add<std::uint8_t>("x.scale", DType::kF8E8m0, {1, 1}, {127}));
  expect_error(ErrorCode::kFormat, {"'x.weight'", "[32, 32]", "[128, 128]"},
               [&] { read_weight_slice(checkpoint, "x", 0, 1); });
}

TEST(WeightSlice, K05_PartialRowBlocksHaveTheirOwnScaleRow) {
  const Fp8Weight weight = read_whole(
      CheckpointFile().add_codes("x.weight", 576, 2048).add_scales("x.weight_scale_inv", 5, 16));
  EXPECT_EQ(weight.cols, 576);
  const WeightView view = weight.view();
  for (const std::int64_t n : {512, 575}) {
    EXPECT_EQ(view.scales[n / 128 * view.scale_row_stride], 1.0f + 4 * 16);
  }
  EXPECT_NO_THROW(read_whole(
      CheckpointFile().add_codes("x.weight", 4544, 256).add_scales("x.weight_scale_inv", 36, 2)));
  expect_refused(
      CheckpointFile().add_codes("x.weight", 576, 2048).add_scales("x.weight_scale_inv", 4, 16),
      {"[576, 2048]", "[5, 16]", "[4, 16]"});
}

TEST(WeightSlice, Q10_ScalesMustBeFiniteAndPositive) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {-3.4e38f, 0.0f, -0.0f, nan, infinity, -1.0f}) {
    expect_refused(CheckpointFile()
                       .add_codes("x.weight", 256, 384)
                       .add<float>("x.weight_scale_inv", DType::kF32, {2, 3}, {1, 1, 1, 1, 1, bad}),
                   {"'x.weight_scale_inv'", "[1, 2]", fmt::format("is {},", bad)});
  }
  expect_refused(CheckpointFile()
                     .add_codes("x.weight", 128, 128)
                     .add<std::uint8_t>("x.scale", DType::kF8E8m0, {1, 1}, {255}),
                 {"'x.scale'", "[0, 0]", "nan"});
}

TEST(WeightSlice, Q10_OnlyTheOwnScalesAreJudged) {
  const TempDir dir;
  const Checkpoint checkpoint =
      checkpoint_of(dir, CheckpointFile()
                             .add_codes("x.weight", 128, 256)
                             .add<float>("x.weight_scale_inv", DType::kF32, {1, 2}, {1, -1}));
  EXPECT_EQ(read_weight_slice(checkpoint, "x", 0, 2).scales, std::vector<float>{1});
  expect_error(ErrorCode::kFormat, {"[0, 1]", "-1"},
               [&] { read_weight_slice(checkpoint, "x", 1, 2); });
}

TEST(WeightSlice, Q11_CodesKeepTheE4m3fnMeaning) {
  auto file =
      CheckpointFile().add_codes("x.weight", 128, 128, 0x7E).add_scales("x.weight_scale_inv", 1, 1);
  EXPECT_EQ(to_float(read_whole(file).codes[0]), 448.0f);
  file =
      CheckpointFile().add_codes("x.weight", 128, 128, 0x80).add_scales("x.weight_scale_inv", 1, 1);
  const float zero = to_float(read_whole(file).codes[0]);
  EXPECT_EQ(zero, 0.0f);
  EXPECT_TRUE(std::signbit(zero));
}

TEST(WeightSlice, Q11_FnuzIsRefusedByName) {
  const TempDir dir;
  const std::string header =
      R"({"x.weight":{"dtype":"F8_E4M3FNUZ","shape":[1,128],"data_offsets":[0,128]},)"
      R"("x.weight_scale_inv":{"dtype":"F32","shape":[1,1],"data_offsets":[128,132]}})";
  write_file(dir / "m.safetensors",
             test::safetensors(header, std::string(128, '\x38') + std::string("\0\0\x80?", 4)));
  expect_error(ErrorCode::kFormat, {"'x.weight'", "F8_E4M3FNUZ", "is F8_E4M3"},
               [&] { read_weight_slice(Checkpoint::open(dir.path()), "x", 0, 1); });
}

TEST(WeightSlice, Q12_NanCodesAreCountedAndPlaced) {
  for (const std::uint8_t nan : {std::uint8_t{0x7F}, std::uint8_t{0xFF}}) {
    std::vector<std::uint8_t> codes(4096 * 256, 0x38);
    codes[4001 * 256 + 18] = nan;
    const TempDir dir;
    const Checkpoint checkpoint =
        checkpoint_of(dir, CheckpointFile()
                               .add("x.weight", DType::kF8E4m3, {4096, 256}, codes)
                               .add_scales("x.weight_scale_inv", 32, 2));
    expect_error(ErrorCode::kFormat, {"m.safetensors", "'x.weight'", "1 NaN", "[4001, 18]"},
                 [&] { read_weight_slice(checkpoint, "x", 0, 2); });
    EXPECT_NO_THROW(read_weight_slice(checkpoint, "x", 1, 2));
  }
  // A position in another rank's slice is told in the whole weight's columns.
  std::vector<std::uint8_t> codes(2 * 256, 0x38);
  codes[256 + 200] = codes[256 + 201] = 0xFF;
  const TempDir dir;
  const Checkpoint checkpoint =
      checkpoint_of(dir, CheckpointFile()
                             .add("x.weight", DType::kF8E4m3, {2, 256}, codes)
                             .add_scales("x.weight_scale_inv", 1, 2));
  expect_error(ErrorCode::kFormat, {"2 NaN", "[1, 200]"},
               [&] { read_weight_slice(checkpoint, "x", 1, 2); });
}

TEST(WeightSlice, OtherDtypesAndShapesAreRefused) {
  expect_refused(CheckpointFile().add<float>("x.weight", DType::kF32, {1, 1}, {1}),
                 {"'x.weight'", "'F32'", "F8_E4M3"});
  expect_refused(CheckpointFile().add<std::uint8_t>("x.weight", DType::kF8E4m3, {128},
                                                    std::vector<std::uint8_t>(128)),
                 {"[128]", "[N, K]"});
  expect_refused(
      CheckpointFile().add_codes("x.weight", 0, 128).add_scales("x.weight_scale_inv", 0, 1),
      {"[0, 128]", "not empty"});
  expect_refused(CheckpointFile()
                     .add_codes("x.weight", 128, 128)
                     .add<std::uint8_t>("x.weight_scale_inv", DType::kF8E4m3, {1, 1}, {0x38}),
                 {"'x.weight_scale_inv'", "F8_E4M3", "F32, BF16 or F8_E8M0"});
  expect_refused(CheckpointFile().add_codes("x.weight", 128, 576).add_scales("x.scale", 1, 5),
                 {"K = 576", "128"}, ErrorCode::kInvalidArgument);
}

TEST(WeightSlice, F16_UnusedUnknownDtypesDoNotStopTheLoad) {
  const TempDir dir;
  const std::string header =
      R"({"s.scale":{"dtype":"F8_E8M0","shape":[1,1],"data_offsets":[0,1]},)"
      R"("s.weight":{"dtype":"F8_E4M3","shape":[1,128],"data_offsets":[1,129]},)"
      R"("odd.weight":{"dtype":"F4","shape":[1,2],"data_offsets":[129,130]}})";
  write_file(dir / "m.safetensors", test::safetensors(header, std::string(130, '\x7E')));
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  EXPECT_EQ(read_weight_slice(checkpoint, "s", 0, 1).scales, std::vector<float>{0.5f});
  expect_error(ErrorCode::kFormat, {"'odd.weight'", "'F4'"},
               [&] { read_weight_slice(checkpoint, "odd", 0, 1); });
}

TEST(Bias, IsRoundedToBf16AndOptional) {
  const TempDir dir;
  const Checkpoint checkpoint =
      checkpoint_of(dir, CheckpointFile()
                             .add<float>("f.bias", DType::kF32, {2}, {1.00390625f, -2.0f})
                             .add<std::uint16_t>("b.bias", DType::kBf16, {2}, {0x3F81, 0x8000})
                             .add<float>("nan.bias", DType::kF32, {2}, {1.0f, NAN})
                             .add<float>("big.bias", DType::kF32, {1}, {3.4e38f})
                             .add<std::uint8_t>("fp8.bias", DType::kF8E4m3, {1}, {0x38}));
  EXPECT_EQ(read_bias(checkpoint, "f", 2), (std::vector<Bf16>{{0x3F80}, {0xC000}}));
  EXPECT_EQ(read_bias(checkpoint, "b.weight", 2), (std::vector<Bf16>{{0x3F81}, {0x8000}}));
  EXPECT_TRUE(read_bias(checkpoint, "none", 2).empty());
  expect_error(ErrorCode::kFormat, {"'f.bias'", "[2]", "[3]"},
               [&] { read_bias(checkpoint, "f", 3); });
  expect_error(ErrorCode::kFormat, {"'nan.bias'", "[1]", "nan"},
               [&] { read_bias(checkpoint, "nan", 2); });
  expect_error(ErrorCode::kFormat, {"'big.bias'", "finite in bf16"},
               [&] { read_bias(checkpoint, "big", 1); });
  expect_error(ErrorCode::kFormat, {"'fp8.bias'", "F8_E4M3"},
               [&] { read_bias(checkpoint, "fp8", 1); });
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' missing in: " << message;
  }
}

TEST(WhyNotDivisible, T01_SliceThatCutsABlockListsTheLegalWorlds) {
  expect_words(why_not_divisible(18432, 32),
               {"18432", "32 ranks", "576", "128",
                "legal world sizes: 1 2 3 4 6 8 9 12 16 18 24 36 48 72 144"});
  for (const int world : {1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 36, 48, 72, 144}) {
    EXPECT_EQ(why_not_divisible(18432, world), "") << world;
  }
}

TEST(WhyNotDivisible, T02_HalfABlockPerRank) {
  expect_words(why_not_divisible(512, 8), {"512", "8 ranks", "64 columns", "128", ": 1 2 4"});
}

TEST(WhyNotDivisible, T05_MoreRanksThanBlocksAndOddCounts) {
  expect_words(why_not_divisible(1024, 16), {"8 blocks", "16 ranks", "64 columns"});
  for (const int world : {3, 5, 6, 7}) {
    expect_words(why_not_divisible(1024, world), {"8 blocks", std::to_string(world) + " ranks"});
  }
  for (const int world : {0, -1}) {
    expect_words(why_not_divisible(1024, world), {std::to_string(world), "at least 1"});
  }
  for (const std::int64_t depth : {0, -128, 64, 576}) {
    expect_words(why_not_divisible(depth, 1), {"K = " + std::to_string(depth), "128"});
  }
}

TEST(WhyNotDivisible, T06_LayerThatCannotBeShardedIsRefused) {
  expect_words(why_not_divisible(96 * 128, 64), {"96 blocks", "64 ranks", "192 columns"});
}

TEST(WhyNotDivisible, W04_ThreeRanks) {
  expect_words(why_not_divisible(16384, 3),
               {"128 blocks", "3 ranks", "legal world sizes: 1 2 4 8"});
  EXPECT_EQ(why_not_divisible(18432, 3), "");
}

}  // namespace
}  // namespace rowband
