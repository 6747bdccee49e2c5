// How the room's messages name ranks. Not installed, like every header here that no public one
// includes.
#pragma once

#include <string>
#include <vector>

namespace rowband::comm {

// "rank 2" or "ranks 0, 2, 3".
std::string rank_list(const std::vector<int>& ranks);

// "rank 0 has 256, rank 1 has 384": every rank's number, for a disagreement.
std::string each_rank_has(const std::vector<long long>& numbers);

}  // namespace rowband::comm
