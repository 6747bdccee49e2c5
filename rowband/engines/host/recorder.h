// What one lane of a rank did, for the timeline. Costs one branch when nobody asked for it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rowband/trace/timeline.h"

namespace rowband::host {

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Recorder {
 public:
  // A null timeline records nothing.
  Recorder(Timeline* timeline, int rank, std::string lane)
      : timeline_(timeline), rank_(rank), lane_(std::move(lane)) {}
  ~Recorder() {
    if (timeline_ != nullptr) timeline_->add(std::move(events_));
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Runs body() and records its interval; label() is called only when recording.
  template <typename Label, typename Body>
  void measure(Activity activity, const Label& label, const Body& body) {
    if (timeline_ == nullptr) return body();
    const std::int64_t begin = now_ns();
    body();
    events_.push_back({rank_, lane_, activity, label(), begin, now_ns()});
  }

 private:
  Timeline* timeline_;
  int rank_;
  std::string lane_;
  std::vector<TimelineEvent> events_;
};

}  // namespace rowband::host
