#include "rowband/trace/natural_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace rowband {
namespace {

TEST(NaturalOrder, NumbersCompareByValue) {
  EXPECT_TRUE(natural_less("worker 2", "worker 10"));
  EXPECT_FALSE(natural_less("worker 10", "worker 2"));
  EXPECT_TRUE(natural_less("sm 9 warp 12", "sm 10 warp 3"));
  EXPECT_TRUE(natural_less("sm 9 warp 3", "sm 9 warp 12"));
  // Larger than any integer type.
  EXPECT_TRUE(natural_less("a99999999999999999999998", "a99999999999999999999999"));
}

TEST(NaturalOrder, PrefixComesFirst) {
  EXPECT_TRUE(natural_less("", "a"));
  EXPECT_TRUE(natural_less("worker", "worker 0"));
  EXPECT_FALSE(natural_less("worker 0", "worker"));
}

TEST(NaturalOrder, ShufflesSortToOneOrder) {
  const std::vector<std::string> ordered = {
      "",     "0",     "00",   "a",   "a00",      "a0",      "a1",  "a2",    "a10",
      "a10b", "b 001", "b 01", "b 1", "b 1 x 02", "b 1 x 2", "b 2", "b 010", "\xC3\xA9 1"};
  std::vector<std::string> shuffled = ordered;
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    std::vector<std::string> sorted = shuffled;
    std::sort(sorted.begin(), sorted.end(), natural_less);
    for (const std::string& name : sorted) EXPECT_FALSE(natural_less(name, name)) << name;
    // Equal values with different zeros are ordered by text, so that every shuffle ends the same.
    std::vector<std::string> again = sorted;
    std::reverse(again.begin(), again.end());
    std::sort(again.begin(), again.end(), natural_less);
    EXPECT_EQ(again, sorted);
    EXPECT_LT(std::find(sorted.begin(), sorted.end(), "b 2"),
              std::find(sorted.begin(), sorted.end(), "b 010"));
  }
}

}  // namespace
}  // namespace rowband
