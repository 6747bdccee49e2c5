#include "rowband/io/near_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace rowband {
namespace {

// Longer names are compared by their first letters; messages need no more.
constexpr std::size_t kLongest = 128;

// Levenshtein distance, one row of the table at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> near_names(std::string_view wanted, std::span<const std::string> names,
                                    std::size_t most) {
  wanted = wanted.substr(0, kLongest);
  const std::size_t farthest = wanted.size() / 2;
  std::vector<std::pair<std::size_t, const std::string*>> near;
  for (const std::string& name : names) {
    const std::string_view candidate = std::string_view(name).substr(0, kLongest);
    const auto longer = std::max(candidate.size(), wanted.size());
    // The distance is at least the difference of the lengths, and cheap to rule out by it.
    if (longer - std::min(candidate.size(), wanted.size()) > farthest) continue;
    const std::size_t distance = edit_distance(wanted, candidate);
    if (distance <= farthest) near.emplace_back(distance, &name);
  }
  std::ranges::sort(near, [](const auto& a, const auto& b) {
    return std::pair(a.first, std::string_view(*a.second)) <
           std::pair(b.first, std::string_view(*b.second));
  });
  std::vector<std::string> result;
  for (std::size_t i = 0; i < std::min(most, near.size()); ++i) result.push_back(*near[i].second);
  return result;
}

}  // namespace rowband
