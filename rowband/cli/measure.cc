#include "rowband/cli/measure.h"

#include <algorithm>
#include <chrono>

#include "rowband/cli/ranks.h"

namespace rowband::cli {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

CallTime call_time(std::span<const Interval> ranks) {
  const auto [first, last] = std::ranges::minmax(ranks, {}, &Interval::begin_ns);
  const std::int64_t end = std::ranges::max(ranks, {}, &Interval::end_ns).end_ns;
  return {static_cast<double>(end - last.begin_ns) / 1e6,
          static_cast<double>(last.begin_ns - first.begin_ns) / 1e6};
}

CallTime time_call(Communicator& comm, Deadline deadline, const std::function<void()>& call) {
  comm.barrier(deadline);
  Interval own;
  own.begin_ns = now_ns();
  call();
  own.end_ns = now_ns();
  return call_time(gather(comm, own, deadline));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace rowband::cli
