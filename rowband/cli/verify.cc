#include "rowband/cli/verify.h"

#include <algorithm>
#include <set>

#include "rowband/base/fail.h"
#include "rowband/cli/digest.h"
#include "rowband/cli/ranks.h"
#include "rowband/numerics/reference.h"

namespace rowband::cli {
namespace {

constexpr double kReferenceFlops = 1.5e10;  // a few seconds on a core
constexpr std::int64_t kGatherRows = 64;    // that travel at a time between the ranks
constexpr std::size_t kFindingBytes = 512;  // of a finding that is told to the other ranks

std::set<std::int64_t> band_edges(const CallPlan& plan, int world) {
  std::set<std::int64_t> edges;
  for (int owner = 0; owner < world; ++owner) {
    const Range band = plan.band(owner);
    if (band.size() > 0) edges.insert({band.begin, band.end - 1});
  }
  return edges;
}

// Adds the ranks' [rows, cols] matrices of doubles, in rank order, on every rank.
std::vector<double> sum_over_ranks(Communicator& comm, const std::vector<double>& own,
                                   std::size_t elements_at_a_time, Deadline deadline) {
  std::vector<double> sum(own.size());
  std::vector<double> gathered;
  for (std::size_t begin = 0; begin < own.size(); begin += elements_at_a_time) {
    const std::size_t count = std::min(elements_at_a_time, own.size() - begin);
    gathered.resize(count * static_cast<std::size_t>(comm.size()));
    comm.all_gather(own.data() + begin, gathered.data(), count * sizeof(double), deadline);
    for (std::size_t i = 0; i < gathered.size(); ++i) sum[begin + i % count] += gathered[i];
  }
  return sum;
}

}  // namespace

std::vector<std::int64_t> sample_rows(const CallPlan& plan, int world, std::int64_t most) {
  std::set<std::int64_t> rows = band_edges(plan, world);
  const std::int64_t spread = std::min(most - std::ssize(rows), plan.rows());
  if (most >= plan.rows()) {
    for (std::int64_t row = 0; row < plan.rows(); ++row) rows.insert(row);
  } else {
    for (std::int64_t i = 0; i < spread; ++i) {
      rows.insert((2 * i + 1) * plan.rows() / (2 * spread));
    }
  }
  return {rows.begin(), rows.end()};
}

std::int64_t affordable_rows(std::int64_t cols, std::int64_t total_depth) {
  const double flops_per_row = 2.0 * static_cast<double>(cols) * static_cast<double>(total_depth);
  return static_cast<std::int64_t>(kReferenceFlops / flops_per_row);
}

Reference::Reference(Communicator& comm, const ActivationView& x,
                     std::span<const std::int64_t> x_rows, const WeightView& w, const Bf16* bias,
                     int threads, Deadline deadline) {
  const Bf16* own_bias = comm.rank() == 0 ? bias : nullptr;  // added once
  const std::vector<double> own = reference_rows({&x, 1}, {&w, 1}, own_bias, x_rows, threads);
  values_ = sum_over_ranks(comm, own, static_cast<std::size_t>(kGatherRows * w.cols), deadline);
}

double Reference::relative_l2(const Output& result, std::span<const std::int64_t> rows) const {
  std::vector<Bf16> picked;
  picked.reserve(values_.size());
  for (const std::int64_t row : rows) {
    const Bf16* begin = result.data + row * result.cols;
    picked.insert(picked.end(), begin, begin + result.cols);
  }
  return rowband::relative_l2(picked, values_);
}

std::vector<std::uint64_t> row_digests(const Output& result) {
  std::vector<std::uint64_t> digests;
  digests.reserve(static_cast<std::size_t>(result.rows));
  for (std::int64_t row = 0; row < result.rows; ++row) {
    const std::span values(result.data + row * result.cols, static_cast<std::size_t>(result.cols));
    digests.push_back(digest_of(std::as_bytes(values)));
  }
  return digests;
}

std::optional<std::int64_t> first_difference(std::span<const std::uint64_t> a,
                                             std::span<const std::uint64_t> b) {
  const auto [in_a, in_b] = std::ranges::mismatch(a, b);
  if (in_a == a.end() && in_b == b.end()) return std::nullopt;
  return in_a - a.begin();
}

std::string why_ranks_differ(Communicator& comm, std::span<const std::uint64_t> rows,
                             Deadline deadline) {
  std::vector<std::uint64_t> all(rows.size() * static_cast<std::size_t>(comm.size()));
  comm.all_gather(rows.data(), all.data(), rows.size_bytes(), deadline);
  const std::span first(all.data(), rows.size());
  for (int rank = 1; rank < comm.size(); ++rank) {
    const std::span other(all.data() + static_cast<std::size_t>(rank) * rows.size(), rows.size());
    if (const auto row = first_difference(first, other)) {
      return fmt::format("row {} has other bits on rank {} than on rank 0", *row, rank);
    }
  }
  return "";
}

std::string first_finding(Communicator& comm, const std::string& own, Deadline deadline) {
  struct Text {
    char bytes[kFindingBytes];
  };
  Text text{};
  own.copy(text.bytes, sizeof text.bytes - 1);
  for (const Text& told : gather(comm, text, deadline)) {
    if (told.bytes[0] != '\0') return told.bytes;
  }
  return "";
}

}  // namespace rowband::cli
