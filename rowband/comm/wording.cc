#include "rowband/comm/wording.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace rowband::comm {

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string each_rank_has(const std::vector<long long>& numbers) {
  std::vector<std::string> parts;
  parts.reserve(numbers.size());
  for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
    parts.push_back(fmt::format("rank {} has {}", rank, numbers[rank]));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace rowband::comm
