#include "rowband/comm/bf16_sum.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace rowband::comm {
namespace {

// Every bit pattern, NaNs, infinities and subnormals among them.
std::vector<Bf16> all_patterns(std::uint32_t seed) {
  std::vector<Bf16> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  std::shuffle(values.begin(), values.end(), std::mt19937(seed));
  return values;
}

bool is_nan(Bf16 value) { return (value.bits & 0x7FFF) > 0x7F80; }

TEST(Bf16Sum, SliceBoundsCoverEverythingOnce) {
  for (int size = 1; size <= 9; ++size) {
    for (const std::int64_t count : {0L, 1L, 31L, 32L, 33L, 1000L, 7168L * 3360L, 1L << 40}) {
      std::int64_t covered = 0;
      for (int rank = 0; rank < size; ++rank) {
        const Slice slice = slice_of(rank, size, count);
        EXPECT_EQ(slice.begin, covered);
        EXPECT_GE(slice.end, slice.begin);
        covered = slice.end;
      }
      EXPECT_EQ(covered, count);
    }
  }
}

TEST(Bf16Sum, LargeSlicesAreEven) {
  const std::int64_t count = 7168L * 3360L;
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_NEAR(static_cast<double>(slice_of(rank, 7, count).count()), count / 7.0, 64.0);
  }
}

TEST(Bf16Sum, EqualsTheScalarDefinitionForEveryPattern) {
  for (std::size_t ranks = 1; ranks <= 8; ++ranks) {
    std::vector<std::vector<Bf16>> values;
    std::vector<const Bf16*> sources;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      values.push_back(all_patterns(static_cast<std::uint32_t>(rank)));
    }
    for (const auto& source : values) sources.push_back(source.data());
    std::vector<Bf16> out(65536 + 1);
    // An odd count, so that the tail is scalar.
    sum_bf16(sources, 65535, out.data());
    for (std::size_t i = 0; i < 65535; ++i) {
      float sum = to_float(sources[0][i]);
      for (std::size_t rank = 1; rank < ranks; ++rank) sum += to_float(sources[rank][i]);
      // Which of two NaNs survives an add is the processor's choice.
      const Bf16 want = to_bf16(sum);
      ASSERT_TRUE(out[i] == want || (is_nan(out[i]) && is_nan(want)))
          << "element " << i << " of " << ranks << " ranks: " << out[i].bits << ", " << want.bits;
    }
    EXPECT_EQ(out[65535].bits, 0) << "wrote past the end";
  }
}

TEST(Bf16Sum, OutputMayBeASource) {
  for (std::size_t own = 0; own < 3; ++own) {
    std::vector<std::vector<Bf16>> values(3, std::vector<Bf16>(1001, to_bf16(1.5f)));
    const std::vector<const Bf16*> sources{values[0].data(), values[1].data(), values[2].data()};
    sum_bf16(sources, 1001, values[own].data());
    for (const Bf16& value : values[own]) EXPECT_EQ(to_float(value), 4.5f);
  }
}

}  // namespace
}  // namespace rowband::comm
