#include "rowband/trace/time_axis.h"

#include <gtest/gtest.h>

namespace rowband {
namespace {

std::vector<std::string> tick_texts(std::int64_t span_ns, int max_count) {
  std::vector<std::string> texts;
  for (const Tick& tick : time_ticks(span_ns, max_count)) texts.push_back(tick.text);
  return texts;
}

TEST(TimeAxis, SpansFromFirstBeginToLastEnd) {
  const TimeAxis axis =
      fit_axis({{0, "w", Activity::kGemm, "", 1000, 5000}, {1, "w", Activity::kGemm, "", 500, 600}},
               100, 900);
  EXPECT_EQ(axis.begin_ns, 500);
  EXPECT_EQ(axis.span_ns, 4500);
  EXPECT_DOUBLE_EQ(axis.x(500), 100);
  EXPECT_DOUBLE_EQ(axis.x(5000), 1000);
  EXPECT_DOUBLE_EQ(axis.x(2750), 550);
}

TEST(TimeAxis, InstantStillHasASpan) {
  EXPECT_EQ(fit_axis({{0, "w", Activity::kGemm, "", 7, 7}}, 0, 1).span_ns, 1);
}

TEST(TimeTicks, StepsAreRoundAndTextsAlign) {
  EXPECT_EQ(tick_texts(1'000'000, 6),
            (std::vector<std::string>{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"}));
  EXPECT_EQ(tick_texts(1'999'999, 5), (std::vector<std::string>{"0.0", "0.5", "1.0", "1.5"}));
  EXPECT_EQ(tick_texts(45'000'000, 10),
            (std::vector<std::string>{"0", "5", "10", "15", "20", "25", "30", "35", "40", "45"}));
  EXPECT_EQ(tick_texts(3, 4),
            (std::vector<std::string>{"0.000000", "0.000001", "0.000002", "0.000003"}));
  EXPECT_EQ(tick_texts(2'000'000'000'000, 3),
            (std::vector<std::string>{"0", "1000000", "2000000"}));
}

TEST(TimeTicks, AlwaysAFewNeverTooMany) {
  for (std::int64_t span = 1; span < 4'000'000'000'000'000; span = span * 13 / 10 + 1) {
    const std::vector<Tick> ticks = time_ticks(span, 12);
    ASSERT_LE(ticks.size(), 12U) << span;
    ASSERT_GE(ticks.size(), span < 4 ? 2U : 5U) << span;
    EXPECT_EQ(ticks.front().offset_ns, 0);
    EXPECT_LE(ticks.back().offset_ns, span);
  }
}

TEST(DurationText, ThreeDigitsAndNoExponent) {
  EXPECT_EQ(duration_text(0), "0 ms");
  EXPECT_EQ(duration_text(1), "0.000001 ms");
  EXPECT_EQ(duration_text(12'345), "0.0123 ms");
  EXPECT_EQ(duration_text(1'000'000), "1.00 ms");
  EXPECT_EQ(duration_text(12'345'678), "12.3 ms");
  EXPECT_EQ(duration_text(123'456'789), "123 ms");
  EXPECT_EQ(duration_text(1'234'567'890'000), "1234568 ms");
}

}  // namespace
}  // namespace rowband
