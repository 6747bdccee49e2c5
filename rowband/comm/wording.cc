#include "rowband/comm/wording.h"

#include <fmt/ranges.h>

#include "rowband/base/fail.h"

namespace rowband::comm {

std::string rank_list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void require_same_counts(std::string_view call, const std::vector<std::int64_t>& counts) {
  std::vector<int> without;
  std::vector<std::string> all;
  bool same = true;
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] == kNoBuffer) without.push_back(static_cast<int>(rank));
    all.push_back(fmt::format("rank {} has {}", rank, counts[rank]));
    same = same && counts[rank] == counts[0];
  }
  if (!without.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "{}: {} passed a negative count, or a null buffer with a positive one", call,
         rank_list(without));
  }
  if (!same) {
    fail(ErrorCode::kDisagreement, "{}: the ranks pass different counts, all must be the same: {}",
         call, fmt::join(all, ", "));
  }
}

void require_rank(std::string_view call, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  fail(ErrorCode::kInvalidArgument, "{}({}): the group's ranks are 0 to {}", call, rank, size - 1);
}

}  // namespace rowband::comm
