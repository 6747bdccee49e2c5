#include "rowband/cli/kernel_timing.h"

#include <algorithm>
#include <thread>

#include "rowband/cli/measure.h"

namespace rowband::cli {
namespace {

constexpr int kMostRepeats = 20, kLeastRepeats = 5;
constexpr double kAutoBudgetMs = 4000;  // of all rounds

double time_once(const std::function<void()>& work) {
  const std::int64_t begin = now_ns();
  work();
  return static_cast<double>(now_ns() - begin) / 1e6;
}

}  // namespace

std::vector<double> time_in_turn(const std::vector<std::function<void()>>& works, int repeats) {
  double round_ms = 0;
  for (const auto& work : works) round_ms += time_once(work);
  if (repeats == 0) {
    repeats = static_cast<int>(std::clamp(kAutoBudgetMs / std::max(round_ms, 1e-3),
                                          1.0 * kLeastRepeats, 1.0 * kMostRepeats));
  }
  std::vector<std::vector<double>> samples(works.size());
  for (int i = 0; i < repeats; ++i) {
    for (std::size_t w = 0; w < works.size(); ++w) samples[w].push_back(time_once(works[w]));
  }
  std::vector<double> medians;
  for (auto& sample : samples) medians.push_back(median(std::move(sample)));
  return medians;
}

void on_threads(int threads, std::int64_t count, const std::function<void(std::int64_t)>& work) {
  const auto share = [&](int thread) {
    const std::int64_t begin = count * thread / threads, end = count * (thread + 1) / threads;
    for (std::int64_t i = begin; i < end; ++i) work(i);
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(share, thread);
  share(0);
}

}  // namespace rowband::cli
