#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <set>

#include "rowband/base/error.h"
#include "rowband/trace/picture_layout.h"
#include "rowband/trace/sample_timeline.h"
#include "rowband/trace/svg_document.h"
#include "rowband/trace/timeline.h"

namespace rowband {
namespace {

namespace fs = std::filesystem;

class SvgTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  std::vector<SvgElement> draw(std::vector<TimelineEvent> events,
                               const std::string& title = "title") const {
    Timeline timeline;
    timeline.add(std::move(events));
    write_timeline_svg(timeline, title, path_);
    return read_svg(path_);
  }

  std::string bytes() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const fs::path path_ = testing::TempDir() + "rowband_" +
                         testing::UnitTest::GetInstance()->current_test_info()->name() + ".svg";
};

std::vector<std::string> texts(const std::vector<SvgElement>& elements) {
  std::vector<std::string> found;
  for (const SvgElement& element : elements) {
    if (element.name == "text") found.push_back(element.text);
  }
  return found;
}

bool has_text(const std::vector<SvgElement>& elements, const std::string& text) {
  const std::vector<std::string> all = texts(elements);
  return std::find(all.begin(), all.end(), text) != all.end();
}

std::vector<SvgBar> bars_about(const std::vector<SvgElement>& elements, const std::string& word) {
  std::vector<SvgBar> found;
  for (const SvgBar& bar : bars_of(elements)) {
    if (bar.tooltip.find(word) != std::string::npos) found.push_back(bar);
  }
  return found;
}

// Pixels of `bar` that lie below or above some of `others`.
double shared_width(const SvgBar& bar, const std::vector<SvgBar>& others) {
  double shared = 0;
  for (const SvgBar& other : others) {
    shared += std::max(
        0.0, std::min(bar.x + bar.width, other.x + other.width) - std::max(bar.x, other.x));
  }
  return shared;
}

TEST_F(SvgTest, TransfersAreSeenBelowTheGemmThatHidesThem) {
  std::vector<TimelineEvent> events = sample_timeline({});
  std::erase_if(events, [](const TimelineEvent& event) { return event.rank != 0; });
  const std::vector<SvgElement> picture = draw(events);
  std::vector<SvgBar> gemm = bars_about(picture, "gemm");
  const std::vector<SvgBar> scatter = bars_about(picture, "scatter");
  EXPECT_EQ(gemm.size(), 96U);
  ASSERT_EQ(scatter.size(), 4U);
  std::erase_if(gemm, [&](const SvgBar& bar) { return bar.y != gemm.front().y; });  // one worker
  for (std::size_t chunk = 0; chunk < 3; ++chunk) {
    EXPECT_GT(scatter[chunk].y, gemm.front().y + gemm.front().height);
    EXPECT_GT(shared_width(scatter[chunk], gemm), 0.9 * scatter[chunk].width) << chunk;
    EXPECT_NE(scatter[chunk].fill, gemm.front().fill);
  }
}

TEST_F(SvgTest, EveryRowIsNamed) {
  const std::vector<SvgElement> picture =
      draw(sample_timeline({.ranks = 2, .workers = 2}), "A call");
  EXPECT_TRUE(has_text(picture, "A call"));
  EXPECT_TRUE(has_text(picture, "time in ms"));
  const std::vector<std::string> all = texts(picture);
  EXPECT_EQ(std::count(all.begin(), all.end(), "rank 0"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "rank 1"), 1);
  EXPECT_EQ(std::count(all.begin(), all.end(), "worker 1"), 2);
  EXPECT_EQ(std::count(all.begin(), all.end(), "copy thread"), 2);
  std::set<double> rows;
  for (const SvgBar& bar : bars_of(picture)) rows.insert(bar.y);
  EXPECT_EQ(rows.size(), 6U);
}

TEST_F(SvgTest, LegendHasThePresentActivitiesWithTheirTotals) {
  const std::vector<SvgElement> picture = draw({
      {0, "worker 0", Activity::kGemm, "", 0, 2'000'000},
      {1, "worker 0", Activity::kGemm, "", 0, 2'000'000},
      {0, "copy", Activity::kScatter, "", 1'000'000, 3'000'000},
      {0, "copy", Activity::kWait, "", 3'000'000, 3'500'000},
  });
  EXPECT_TRUE(has_text(picture, "gemm 4.00 ms"));
  EXPECT_TRUE(has_text(picture, "scatter 2.00 ms, 50% under gemm"));
  EXPECT_TRUE(has_text(picture, "wait 0.500 ms"));
  for (const std::string& text : texts(picture)) {
    EXPECT_EQ(text.find("reduce"), std::string::npos) << text;
    EXPECT_EQ(text.find("gather"), std::string::npos) << text;
  }
  EXPECT_TRUE(has_text(picture,
                       "2 ranks, 3 lanes, 4 intervals in 3.50 ms. Times below are sums over "
                       "all lanes."));
}

TEST_F(SvgTest, BasePathWithoutGemmClaimsNoOverlap) {
  const std::vector<SvgElement> picture =
      draw({{0, "comm", Activity::kAllReduce, "", 0, 1'000'000}});
  EXPECT_TRUE(has_text(picture, "all-reduce 1.00 ms"));
}

TEST_F(SvgTest, TransferThatTookNoTimeHasNoShare) {
  const std::vector<SvgElement> picture = draw(
      {{0, "w", Activity::kGemm, "", 0, 1'000'000}, {0, "copy", Activity::kScatter, "", 500, 500}});
  EXPECT_TRUE(has_text(picture, "scatter 0 ms"));
}

TEST_F(SvgTest, EachActivityHasItsOwnColour) {
  std::vector<TimelineEvent> events;
  for (int i = 0; i < kActivityCount; ++i) {
    events.push_back({0, "lane", static_cast<Activity>(i), "", i * 1000, i * 1000 + 900});
  }
  std::set<std::string> fills;
  for (const SvgBar& bar : bars_of(draw(events))) fills.insert(bar.fill);
  EXPECT_EQ(fills.size(), static_cast<std::size_t>(kActivityCount));
}

TEST_F(SvgTest, BarsStandWhereTheirTimesAre) {
  const std::int64_t start = 9'000'000'000'000;  // a clock that has long been running
  const std::vector<SvgBar> bars =
      bars_of(draw({{0, "w", Activity::kGemm, "first", start, start + 1'000'000},
                    {0, "w", Activity::kReduce, "second", start + 3'000'000, start + 4'000'000}}));
  ASSERT_EQ(bars.size(), 2U);
  EXPECT_EQ(bars[0].tooltip, "gemm 1.00 ms from 0 ms: first");
  EXPECT_EQ(bars[1].tooltip, "reduce 1.00 ms from 3.00 ms: second");
  const double ms = bars[0].width;
  EXPECT_NEAR(bars[1].x - bars[0].x, 3 * ms, 0.05 * ms);
  EXPECT_NEAR(bars[1].width, ms, 1);
  EXPECT_LT(bars[1].x + bars[1].width, kPictureWidth);
}

TEST_F(SvgTest, OverlapWithinALaneIsKeptAsTwoRows) {
  const std::vector<SvgBar> bars = bars_of(draw({{0, "copy", Activity::kScatter, "a", 0, 1000},
                                                 {0, "copy", Activity::kGather, "b", 500, 1500}}));
  ASSERT_EQ(bars.size(), 2U);
  EXPECT_LT(bars[0].x, bars[1].x);
  EXPECT_LT(bars[1].x, bars[0].x + bars[0].width);
  EXPECT_GE(bars[1].y, bars[0].y + bars[0].height);
}

TEST_F(SvgTest, ShortEventIsStillVisible) {
  const std::vector<SvgBar> bars =
      bars_of(draw({{0, "w", Activity::kGemm, "", 0, 1'000'000'000},
                    {0, "w", Activity::kWait, "", 1'000'000'000, 1'000'000'001}}));
  ASSERT_EQ(bars.size(), 2U);
  EXPECT_EQ(bars[1].tooltip, "wait 0.000001 ms from 1000 ms");
  EXPECT_GE(bars[1].width, 1.0);
}

TEST_F(SvgTest, ShortEventIsDrawnOverItsNeighbours) {
  const std::vector<SvgBar> bars = bars_of(draw({{0, "w", Activity::kWait, "", 0, 500'000},
                                                 {0, "w", Activity::kGemm, "", 500'000, 500'001},
                                                 {0, "w", Activity::kWait, "", 500'001, 900'000}}));
  ASSERT_EQ(bars.size(), 3U);
  EXPECT_EQ(bars.back().tooltip, "gemm 0.000001 ms from 0.500 ms");
}

TEST_F(SvgTest, StaysSmallForManyEvents) {
  const std::vector<TimelineEvent> events =
      sample_timeline({.ranks = 4, .workers = 4, .chunks_per_band = 16, .tiles_per_chunk = 40});
  ASSERT_GT(events.size(), 10'000U);
  draw(events);
  EXPECT_LT(fs::file_size(path_), 400'000U);
}

TEST_F(SvgTest, AnyTextIsEscaped) {
  const std::string hostile = "</text>&\"'<!--\x02\xFF]]>";
  const std::string shown = "</text>&\"'<!--\xEF\xBF\xBD\xEF\xBF\xBD]]>";
  const std::vector<SvgElement> picture =
      draw({{0, hostile, Activity::kGemm, hostile, 0, 1'000'000}}, hostile);
  const std::vector<std::string> all = texts(picture);
  EXPECT_EQ(std::count(all.begin(), all.end(), shown), 3);  // title, lane, label in its bar
  EXPECT_EQ(bars_of(picture).at(0).tooltip, "gemm 1.00 ms from 0 ms: " + shown);
  EXPECT_EQ(picture.front().tooltip, shown);
}

TEST_F(SvgTest, LongLaneNameIsCutAndItsTooltipIsWhole) {
  const std::string name = "worker with a name that would push the bars out of the picture";
  bool found = false;
  for (const SvgElement& element : draw({{0, name, Activity::kGemm, "", 0, 1}})) {
    found |= element.name == "text" && element.tooltip == name && element.text.size() < name.size();
  }
  EXPECT_TRUE(found);
}

TEST_F(SvgTest, SameTimelineGivesTheSameBytes) {
  std::vector<TimelineEvent> events = sample_timeline({});
  TimelineEvent twin = events.front();
  twin.label = "at the same time";
  events.push_back(twin);
  draw(events);
  const std::string first = bytes();
  std::reverse(events.begin(), events.end());  // the order of recording is chance
  draw(events);
  EXPECT_EQ(bytes(), first);
}

// A limit on the size of files stands in for a full disk.
TEST_F(SvgTest, FailedWriteLeavesTheOldPicture) {
  draw({{0, "w", Activity::kGemm, "old", 0, 1}});
  const std::string old = bytes();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{old.size() + 100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message = "no error";
  try {
    draw(sample_timeline({}));
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kIo);
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_NE(message.find("File too large"), std::string::npos) << message;
  EXPECT_EQ(bytes(), old);
}

TEST_F(SvgTest, EmptyTimelineIsRefused) {
  try {
    draw({});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(SvgTest, UnwritablePathIsNamed) {
  Timeline timeline;
  timeline.add(sample_timeline({}));
  try {
    write_timeline_svg(timeline, "title", "/nonexistent folder/picture.svg");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("/nonexistent folder/picture.svg"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rowband
