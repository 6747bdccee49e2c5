// How long a collective call takes, apart from how unevenly its ranks began it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband::cli {

// On the clock that all ranks of a machine share.
struct Interval {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

std::int64_t now_ns();

struct CallTime {
  // From when the last rank had begun until the last rank was done: the maximum over ranks of each
  // rank's time without its wait for a rank that came late.
  double ms = 0;
  // From the first rank's begin to the last one's. What launching the ranks cost, not the call.
  double skew_ms = 0;
};

CallTime call_time(std::span<const Interval> ranks);

// Aligns the ranks by a barrier, then times call() on each. `interval` gets this rank's own.
// Collective; the result is the same on every rank.
CallTime time_call(Communicator& comm, Deadline deadline, const std::function<void()>& call);

double median(std::vector<double> values);  // 0 for none

}  // namespace rowband::cli
