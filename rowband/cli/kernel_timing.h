// Timing of local work, without ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace rowband::cli {

// Median ms of each, run in turn, A B C A B C, after one round that is not counted. `repeats` 0
// takes 20, and fewer, but at least 5, of slow ones.
std::vector<double> time_in_turn(const std::vector<std::function<void()>>& works, int repeats);

// work(i) for each i in [0, count), dealt over `threads` threads.
void on_threads(int threads, std::int64_t count, const std::function<void(std::int64_t)>& work);

}  // namespace rowband::cli
