#include "rowband/cli/result_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband::cli {
namespace {

constexpr std::int64_t kMany = (1 << 20) * 2 + 12345;  // three pieces

TEST(ResultBits, TheDigestIsThatOfTheValuesAndNotOfTheThreads) {
  auto values = random_bf16(kMany, 1);
  const std::uint64_t digest = digest_of_result(values, 1);
  EXPECT_EQ(digest_of_result(values, 3), digest);
  for (const std::size_t at : {std::size_t{0}, std::size_t{1} << 20, values.size() - 1}) {
    values[at].bits ^= 1;
    EXPECT_NE(digest_of_result(values, 2), digest) << at;
    values[at].bits ^= 1;
  }
  EXPECT_EQ(digest_of_result(values, 2), digest);
}

TEST(ResultBits, TheDifferenceIsTheReferencesOne) {
  const auto a = random_bf16(kMany, 2);
  auto b = a;
  EXPECT_EQ(relative_l2_of_results(a, b, 2), 0);
  b.back() = to_bf16(7.0f);
  b[5] = to_bf16(-3.0f);
  const double want = relative_l2(std::span<const Bf16>(a), std::span<const Bf16>(b));
  EXPECT_GT(want, 0);
  EXPECT_NEAR(relative_l2_of_results(a, b, 2), want, 1e-9 * want);
  b[7] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  EXPECT_TRUE(std::isnan(relative_l2_of_results(a, b, 2)));
  EXPECT_EQ(relative_l2_of_results({}, {}, 2), 0);
}

}  // namespace
}  // namespace rowband::cli
