// What is told of measurements, on made-up ones: no GPU is needed.
#include "rowband/cli/gpu_bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "rowband/cli/gpu_arms.h"

namespace rowband::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

GpuArmResult arm(const char* name, double queued, double single) {
  GpuArmResult result;
  result.name = name;
  result.us = {{queued, queued}, {single, single}};
  const auto& all = all_arms();
  const auto spec = std::ranges::find(all, std::string_view(name), &ArmSpec::name);
  if (spec != all.end() && spec->fused) result.fused = *spec;
  return result;
}

// Fused takes `fused` of the base path's 1000 us back to back, and 100 us more in a single call.
GpuShapeResult shape(const GpuShape& s, double fused) {
  GpuShapeResult result;
  result.shape = s;
  result.arms = {arm("base", 1000, 1100),
                 arm("bf16-direct", fused * 1000, fused * 1000 + 100),
                 arm("bf16-copy_engine", 2000, 2100),
                 arm("fp8-direct", 400, 550),
                 arm("own GEMM", 450, 460),
                 arm("cuBLASLt", 500, 510)};
  result.bytes_bf16 = 200'000'000;
  result.bytes_fp8 = 150'000'000;
  return result;
}

constexpr GpuShape kMain{16384, 7168, 2048};

GpuBenchResult result_of(std::vector<GpuShapeResult> shapes) {
  GpuBenchResult result;
  result.world = 2;
  result.copy_rate = 400;  // 200 MB in 500 us
  result.shapes = std::move(shapes);
  return result;
}

// The cells of the line that holds `words`.
std::vector<std::string> cells(const std::string& markdown, const std::string& words) {
  std::istringstream lines(markdown);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(words) == std::string::npos) continue;
    std::vector<std::string> found;
    std::istringstream parts(line);
    for (std::string cell; std::getline(parts, cell, '|');) {
      const auto begin = cell.find_first_not_of(' ');
      if (begin == std::string::npos) continue;
      found.push_back(cell.substr(begin, cell.find_last_not_of(' ') - begin + 1));
    }
    return found;
  }
  return {};
}

TEST(GpuBenchReport, TheCeilingsAreTheFasterGemmAndTheLinksTwoRates) {
  GpuBenchResult result = result_of({shape(kMain, 0.51)});
  const auto text = gpu_ceilings_markdown(result);
  // 481 GFLOP in 450 us, cuBLASLt in 500; 200 MB in 510 us, of 400 GB/s; 150 MB in 400 us.
  EXPECT_THAT(cells(text, "own GEMM"), testing::ElementsAre("16384 x 7168 x 2048", "own GEMM",
                                                            "1069", "1.11", "-", "-", "-"));
  EXPECT_THAT(cells(text, "bf16-direct"), testing::ElementsAre("16384 x 7168 x 2048", "bf16-direct",
                                                               "943", "0.98", "392", "0.98", "-"));
  result.store_rate = 500;
  EXPECT_THAT(cells(gpu_ceilings_markdown(result), "fp8-direct"),
              testing::ElementsAre("16384 x 7168 x 2048", "fp8-direct", "1203", "1.25", "375",
                                   "0.94", "0.75"));
}

TEST(GpuBenchReport, EveryTargetHasItsRatioInBothTimingsAndAVerdict) {
  const auto text = gpu_targets_markdown(result_of({shape(kMain, 0.51)}));
  EXPECT_THAT(cells(text, "bf16 wire / base"),
              testing::ElementsAre("16384 x 7168 x 2048", "fused, bf16 wire / base path", "0.510",
                                   "0.555", "0.52", "back to back"));  // 610 of 1100
  EXPECT_THAT(cells(text, "fp8 gather"),
              testing::ElementsAre("16384 x 7168 x 2048", "fused, fp8 gather / base path", "0.400",
                                   "0.500", "0.42", "back to back"));
  // The link's 500 us are more than the GEMM's 450 and 460.
  EXPECT_THAT(cells(text, "max(own"),
              testing::ElementsAre("16384 x 7168 x 2048", "fused, bf16 wire / max(own GEMM, link)",
                                   "1.020", "1.220", "1.10", "back to back"));
  EXPECT_THAT(cells(text, "cuBLASLt's"),
              testing::ElementsAre("16384 x 7168 x 2048", "own GEMM / cuBLASLt's", "0.900", "0.902",
                                   "0.95", "yes"));
  EXPECT_EQ(cells(gpu_targets_markdown(result_of({shape(kMain, 0.53)})), "bf16 wire / base")[5],
            "no");
}

TEST(GpuBenchReport, WhatHasNoTimesHasNoRatio) {
  GpuShapeResult one = shape(kMain, 0.5);
  one.arms[3].absent = "wire fp8 is the host engine's";
  one.arms[5].wrong = "the ranks' results differ";
  const GpuBenchResult result = result_of({one});
  const auto text = gpu_targets_markdown(result);
  EXPECT_EQ(cells(text, "fp8 gather")[5], "not measured");
  EXPECT_EQ(cells(text, "cuBLASLt's")[5], "not measured");
  const auto times = gpu_times_markdown(result);
  EXPECT_THAT(times, HasSubstr("cuBLASLt: the ranks' results differ"));
  EXPECT_THAT(times, HasSubstr("fp8-direct: wire fp8 is the host engine's"));
  EXPECT_EQ(gpu_bench_failures(result), "1 result is wrong");  // an arm not served is not wrong
  EXPECT_EQ(gpu_bench_json(result)["results"][0]["arms"][5]["error"], "the ranks' results differ");
  EXPECT_EQ(gpu_targets_markdown(result_of({shape({300, 256, 128}, 0.5)})), "");
}

TEST(GpuBenchReport, TheFasterTransportOfAWireCounts) {
  GpuShapeResult one = shape(kMain, 0.6);
  std::swap(one.arms[1].us, one.arms[2].us);
  EXPECT_EQ(cells(gpu_targets_markdown(result_of({one})), "bf16 wire / base")[2], "0.600");
  one.arms[2].wrong = "broken";  // the fast one
  EXPECT_EQ(cells(gpu_targets_markdown(result_of({one})), "bf16 wire / base")[2], "2.000");
}

TEST(GpuBenchReport, ThresholdsAreWhereFusedIsNoSlowerFromThereOn) {
  std::vector<GpuShapeResult> shapes;
  for (const auto& [rows, fused] : {std::pair<std::int64_t, double>{64, 1.2},
                                    {128, 0.9},
                                    {256, 1.05},
                                    {512, 0.95},
                                    {1024, 0.7}}) {
    shapes.push_back(shape({rows, 7168, 2048}, fused));
    shapes.back().verdict.decision = rows >= 256 ? Decision::kFuse : Decision::kTooFewRows;
  }
  const auto text = gpu_thresholds_text(result_of(shapes));
  EXPECT_THAT(text, HasSubstr("back to back: fused is no slower from M=512 on; the policy fuses "
                              "slower calls: M=256 (1.050)"));
  shapes.resize(3);
  shapes[2].verdict.decision = Decision::kTooFewRows;
  const auto none = gpu_thresholds_text(result_of(shapes));
  EXPECT_THAT(none, HasSubstr("fused is slower at the largest M too"));
  EXPECT_THAT(none, Not(HasSubstr("slower calls:")));
}

TEST(GpuBenchReport, TheSweepGoesFrom1To32768) {
  const auto shapes = sweep_shapes({7168, 5120}, {2048});
  EXPECT_EQ(shapes.front(), (GpuShape{1, 7168, 2048}));
  EXPECT_EQ(shapes.back(), (GpuShape{32768, 5120, 2048}));
  for (std::int64_t rows : {1, 2, 64, 96, 1024, 1536, 16384, 24576, 32768}) {
    EXPECT_NE(std::ranges::find(shapes, GpuShape{rows, 5120, 2048}), shapes.end()) << rows;
  }
  EXPECT_EQ(target_shapes().size(), 5u);
}

}  // namespace
}  // namespace rowband::cli
