#include "rowband/cli/plot.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>

#include "rowband/base/error.h"
#include "rowband/trace/svg_document.h"

namespace rowband {
namespace {

namespace fs = std::filesystem;

class PlotTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "rowband_plot_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    path_ = folder_ / "plot.svg";
    old_path_variable_ = std::getenv("PATH");
  }
  void TearDown() override {
    setenv("PATH", old_path_variable_.c_str(), 1);
    fs::remove_all(folder_);
  }

  // Puts a program of that name and body in gnuplot's place.
  void install_fake_gnuplot(const std::string& body) const {
    std::ofstream(folder_ / "gnuplot") << "#!/bin/sh\n" << body << "\n";
    fs::permissions(folder_ / "gnuplot", fs::perms::owner_all);
    setenv("PATH", folder_.c_str(), 1);
  }

  std::vector<SvgElement> draw(const std::vector<PlotSeries>& series, bool log2_x = true,
                               const std::string& title = "title") const {
    write_plot_svg(path_, title, "rows M", "time in ms", series, log2_x);
    return read_svg(path_);
  }

  Error refusal(const std::vector<PlotSeries>& series, bool log2_x = true) const {
    try {
      write_plot_svg(path_, "title", "x", "y", series, log2_x);
    } catch (const Error& error) {
      return error;
    }
    return Error(ErrorCode::kInternal, "nothing was thrown");
  }

  fs::path folder_;
  fs::path path_;
  std::string old_path_variable_;
};

class PlotWithGnuplotTest : public PlotTest {
 protected:
  void SetUp() override {
    if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
      GTEST_SKIP() << "gnuplot is not installed";
    }
    PlotTest::SetUp();
  }
  void TearDown() override {
    if (!folder_.empty()) PlotTest::TearDown();
  }
};

const std::vector<PlotSeries> kTwoSeries = {{"fused", {1, 64, 4096}, {0.1, 0.2, 3.5}},
                                            {"base path", {1, 64, 4096}, {0.2, 0.3, 5.5}}};

std::set<std::string> texts(const std::vector<SvgElement>& elements) {
  std::set<std::string> found;
  for (const SvgElement& element : elements) {
    if (element.name != "text") continue;
    const std::string& text = element.text;  // gnuplot puts space around it
    const std::size_t begin = text.find_first_not_of(" \n\t");
    if (begin == std::string::npos) continue;
    found.insert(text.substr(begin, text.find_last_not_of(" \n\t") + 1 - begin));
  }
  return found;
}

TEST_F(PlotWithGnuplotTest, TitleLabelsSeriesAndTicksAreThere) {
  const std::set<std::string> found = texts(draw(kTwoSeries));
  for (const char* text :
       {"title", "rows M", "time in ms", "fused", "base path", "0", "64", "4096"}) {
    EXPECT_TRUE(found.contains(text)) << text;
  }
}

TEST_F(PlotWithGnuplotTest, EverySeriesHasItsOwnColour) {
  std::set<std::string> strokes;
  for (const SvgElement& element : draw(kTwoSeries)) {
    if (element.name != "path" || !element.attributes.contains("stroke")) continue;
    strokes.insert(element.attributes.at("stroke"));
  }
  EXPECT_TRUE(strokes.contains("rgb( 59, 111, 181)") && strokes.contains("rgb(232, 135,  26)"))
      << testing::PrintToString(strokes);
}

TEST_F(PlotWithGnuplotTest, LargeRowCountsAreWrittenInFull) {
  EXPECT_TRUE(texts(draw({{"s", {1, 1048576}, {1, 2}}})).contains("1048576"));
}

TEST_F(PlotWithGnuplotTest, TextIsDrawnAsItIs) {
  const std::string hostile = "it's a_b^2 {/Bold x} \\n \"$0\" `date` <t>&%";
  const std::set<std::string> found = texts(draw({{hostile, {1, 2}, {1, 2}}}, false, hostile));
  EXPECT_TRUE(found.contains(hostile)) << testing::PrintToString(found);
}

TEST_F(PlotWithGnuplotTest, TextCannotStartACommand) {
  const std::string file = (folder_ / "stolen").string();
  const std::set<std::string> found =
      texts(draw({{"a\nset print '" + file + "'\nprint 1\xFF", {1, 2}, {1, 2}}}));
  EXPECT_FALSE(fs::exists(file));
  EXPECT_TRUE(found.contains("a set print '" + file + "' print 1\xEF\xBF\xBD"))
      << testing::PrintToString(found);
}

TEST_F(PlotWithGnuplotTest, OnePointAndNegativeValuesAreDrawn) {
  EXPECT_TRUE(texts(draw({{"one", {8}, {3}}})).contains("one"));
  EXPECT_TRUE(texts(draw({{"below", {1, 2}, {-4, 4}}}, false)).contains("-4"));
}

TEST_F(PlotWithGnuplotTest, UnwritablePathIsNamed) {
  try {
    write_plot_svg("/nonexistent folder/plot.svg", "t", "x", "y", kTwoSeries, true);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("/nonexistent folder/plot.svg"), std::string::npos)
        << error.what();
  }
}

TEST_F(PlotTest, MissingGnuplotIsUnavailableAndNamesThePackage) {
  setenv("PATH", folder_.c_str(), 1);
  const Error error = refusal(kTwoSeries);
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
  EXPECT_NE(std::string(error.what()).find("gnuplot-nox"), std::string::npos) << error.what();
}

TEST_F(PlotTest, FailingGnuplotIsAnErrorAndKeepsTheOldPlot) {
  std::ofstream(path_) << "old";
  install_fake_gnuplot("echo '<svg></svg>'; echo no such terminal >&2; exit 3");
  const Error error = refusal(kTwoSeries);
  EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  const std::string message = error.what();
  EXPECT_NE(message.find("status 3"), std::string::npos) << message;
  EXPECT_NE(message.find("no such terminal"), std::string::npos) << message;
  std::ifstream file(path_);
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(file), {}}), "old");
}

TEST_F(PlotTest, KilledGnuplotIsAnError) {
  install_fake_gnuplot("kill -9 $$");
  EXPECT_NE(std::string(refusal(kTwoSeries).what()).find("signal 9"), std::string::npos);
}

TEST_F(PlotTest, HalfAPictureIsAnError) {
  install_fake_gnuplot("echo '<svg>'");
  EXPECT_NE(std::string(refusal(kTwoSeries).what()).find("no whole picture"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(PlotTest, WhatHasNoPlaceOnTheAxesIsRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const auto message = [&](const std::vector<PlotSeries>& series, bool log2_x) {
    const Error error = refusal(series, log2_x);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    return std::string(error.what());
  };
  EXPECT_NE(message({}, true).find("no series"), std::string::npos);
  EXPECT_NE(message({{"s", {}, {}}}, true).find("0 x and 0 y"), std::string::npos);
  EXPECT_NE(message({{"s", {1, 2}, {1}}}, true).find("2 x and 1 y"), std::string::npos);
  EXPECT_NE(message({{"s", {1, 2}, {1, nan}}}, true).find("(2, nan)"), std::string::npos);
  EXPECT_NE(message({{"s", {infinity}, {1}}}, true).find("(inf, 1)"), std::string::npos);
  EXPECT_NE(message({{"s", {4, 0}, {1, 1}}}, true).find("x = 0"), std::string::npos);
}

}  // namespace
}  // namespace rowband
