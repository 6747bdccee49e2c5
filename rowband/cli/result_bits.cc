#include "rowband/cli/result_bits.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/cli/digest.h"
#include "rowband/cli/kernel_timing.h"
#include "rowband/numerics/float_environment.h"

namespace rowband::cli {
namespace {

constexpr std::int64_t kPiece = 1 << 20;

std::int64_t pieces(std::span<const Bf16> values) {
  return (std::ssize(values) + kPiece - 1) / kPiece;
}

std::span<const Bf16> piece(std::span<const Bf16> values, std::int64_t index) {
  const std::int64_t begin = index * kPiece;
  return values.subspan(static_cast<std::size_t>(begin),
                        static_cast<std::size_t>(std::min(kPiece, std::ssize(values) - begin)));
}

}  // namespace

std::uint64_t digest_of_result(std::span<const Bf16> values, int threads) {
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(pieces(values)));
  on_threads(threads, std::ssize(digests), [&](std::int64_t i) {
    digests[static_cast<std::size_t>(i)] = digest_of(std::as_bytes(piece(values, i)));
  });
  return digest_of(std::as_bytes(std::span(digests)));
}

double relative_l2_of_results(std::span<const Bf16> got, std::span<const Bf16> want, int threads) {
  if (got.size() != want.size()) {
    fail(ErrorCode::kInvalidArgument, "cannot compare {} values with {}: sizes must be equal",
         got.size(), want.size());
  }
  struct Sums {
    double difference = 0, norm = 0;
  };
  std::vector<Sums> sums(static_cast<std::size_t>(pieces(got)));
  on_threads(threads, std::ssize(sums), [&](std::int64_t i) {
    const ScopedFloatEnvironment ieee;
    const auto a = piece(got, i), b = piece(want, i);
    Sums own;
    for (std::size_t at = 0; at < a.size(); ++at) {
      const double expected = to_float(b[at]), error = to_float(a[at]) - expected;
      own.difference += error * error;
      own.norm += expected * expected;
    }
    sums[static_cast<std::size_t>(i)] = own;
  });
  Sums all;
  for (const Sums& one : sums) {
    all.difference += one.difference;
    all.norm += one.norm;
  }
  return all.difference == 0 && all.norm == 0 ? 0 : std::sqrt(all.difference) / std::sqrt(all.norm);
}

}  // namespace rowband::cli
