#include "rowband/trace/marks.h"

#include <gtest/gtest.h>

namespace rowband {
namespace {

// 1000 ns to a pixel, 100 pixels from x = 10.
constexpr TimeAxis kAxis{0, 100'000, 10, 100};

TimelineEvent event(Activity activity, std::int64_t begin_ns, std::int64_t end_ns,
                    std::string label = "") {
  return {0, "w", activity, std::move(label), begin_ns, end_ns};
}

std::int64_t busy(const Mark& mark, Activity activity) {
  return mark.busy_ns[static_cast<std::size_t>(activity)];
}

TEST(Marks, WideIntervalsKeepTheirPlace) {
  const std::vector<Mark> marks = marks_of(
      {event(Activity::kGemm, 500, 3'000, "a"), event(Activity::kGemm, 3'000, 4'000, "b")}, kAxis);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_DOUBLE_EQ(marks[0].x, 10.5);
  EXPECT_DOUBLE_EQ(marks[0].width, 2.5);
  EXPECT_EQ(marks[0].label, "a");
  EXPECT_EQ(busy(marks[0], Activity::kGemm), 2'500);
  EXPECT_FALSE(marks[0].narrow);
  EXPECT_DOUBLE_EQ(marks[1].x, 13);
  EXPECT_EQ(marks[1].begin_ns, 3'000);
}

TEST(Marks, ShortIntervalBetweenWideOnesIsSeen) {
  const std::vector<Mark> marks =
      marks_of({event(Activity::kGemm, 0, 5'400), event(Activity::kWait, 5'400, 5'401, "arrival"),
                event(Activity::kGemm, 5'401, 9'000)},
               kAxis);
  ASSERT_EQ(marks.size(), 3U);
  EXPECT_TRUE(marks[1].narrow);
  EXPECT_EQ(marks[1].activity, Activity::kWait);
  EXPECT_EQ(marks[1].label, "arrival");
  EXPECT_DOUBLE_EQ(marks[1].x, 15);
  EXPECT_DOUBLE_EQ(marks[1].width, 1);
}

TEST(Marks, NarrowIntervalsOfOneActivityBecomeOneBar) {
  Track track;
  for (int i = 0; i < 400; ++i) track.push_back(event(Activity::kGemm, i * 100, i * 100 + 90, "t"));
  const std::vector<Mark> marks = marks_of(track, kAxis);
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_DOUBLE_EQ(marks[0].x, 10);
  EXPECT_DOUBLE_EQ(marks[0].width, 40);
  EXPECT_EQ(marks[0].count, 400);
  EXPECT_EQ(busy(marks[0], Activity::kGemm), 400 * 90);
  EXPECT_EQ(marks[0].label, "");
}

TEST(Marks, GapBetweenNarrowIntervalsStaysOpen) {
  const std::vector<Mark> marks =
      marks_of({event(Activity::kGemm, 0, 100), event(Activity::kGemm, 2'000, 2'100)}, kAxis);
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_DOUBLE_EQ(marks[0].x + marks[0].width, 11);
  EXPECT_DOUBLE_EQ(marks[1].x, 12);
}

TEST(Marks, PixelsAreSharedByTime) {
  // In every pixel: 750 ns of GEMM, 250 ns of reduce. No pixel is mostly reduce.
  Track track;
  for (int i = 0; i < 100; ++i) {
    track.push_back(event(Activity::kGemm, i * 1'000, i * 1'000 + 750));
    track.push_back(event(Activity::kReduce, i * 1'000 + 750, i * 1'000 + 1'000));
  }
  double gemm_pixels = 0;
  double reduce_pixels = 0;
  std::int64_t count = 0;
  std::int64_t reduce_ns = 0;
  for (const Mark& mark : marks_of(track, kAxis)) {
    (mark.activity == Activity::kGemm ? gemm_pixels : reduce_pixels) += mark.width;
    count += mark.count;
    reduce_ns += busy(mark, Activity::kReduce);
  }
  EXPECT_NEAR(gemm_pixels, 75, 1);
  EXPECT_NEAR(reduce_pixels, 25, 1);
  EXPECT_EQ(count, 200);
  EXPECT_EQ(reduce_ns, 100 * 250);
}

TEST(Marks, PixelNeverShowsWhatIsNotInIt) {
  // A pixel with 600 ns of GEMM and 400 of wait leaves wait behind; the next has GEMM only.
  const std::vector<Mark> marks =
      marks_of({event(Activity::kGemm, 0, 600), event(Activity::kWait, 600, 1'000),
                event(Activity::kGemm, 1'000, 1'100)},
               kAxis);
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].activity, Activity::kGemm);
  EXPECT_DOUBLE_EQ(marks[0].width, 2);
}

TEST(Marks, InstantAtTheVeryEndStaysInsideTheAxis) {
  const std::vector<Mark> marks = marks_of({event(Activity::kWait, 100'000, 100'000)}, kAxis);
  ASSERT_EQ(marks.size(), 1U);
  EXPECT_EQ(marks[0].activity, Activity::kWait);
  EXPECT_DOUBLE_EQ(marks[0].x + marks[0].width, 110);
}

TEST(Marks, NumberIsBoundedByThePixels) {
  Track track;
  for (int i = 0; i < 50'000; ++i) {
    track.push_back(event(i % 2 == 0 ? Activity::kGemm : Activity::kWait, i * 2, i * 2 + 2));
  }
  const std::vector<Mark> marks = marks_of(track, kAxis);
  EXPECT_LE(marks.size(), 100U);
  EXPECT_GE(marks.size(), 50U);
}

}  // namespace
}  // namespace rowband
