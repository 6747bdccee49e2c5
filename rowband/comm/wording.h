// How the room's messages name ranks. Not installed, like every header here that no public one
// includes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rowband::comm {

// "rank 2" or "ranks 0, 2, 3".
std::string rank_list(const std::vector<int>& ranks);

// Throws unless every rank passed the same count (the same on every rank, so that all of them throw
// alike): Error(kInvalidArgument) naming the ranks with kNoBuffer, Error(kDisagreement) with every
// rank's count.
void require_same_counts(std::string_view call, const std::vector<std::int64_t>& counts);

// What a rank tells instead of its count when that is negative or comes without a buffer.
inline constexpr std::int64_t kNoBuffer = -1;
inline std::int64_t told_count(const void* data, std::int64_t count) {
  return count < 0 || (count > 0 && data == nullptr) ? kNoBuffer : count;
}

// Throws Error(kInvalidArgument) unless 0 <= rank < size.
void require_rank(std::string_view call, int rank, int size);

}  // namespace rowband::comm
