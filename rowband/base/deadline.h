// A point in time after which a wait gives up. Every wait of the library takes one.
#pragma once

#include <chrono>

namespace rowband {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::nanoseconds budget) {
    return Deadline(Clock::now() + budget, budget);
  }

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }
  // Never negative.
  std::chrono::nanoseconds left() const {
    const auto now = Clock::now();
    return now >= at_ ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(at_ - now);
  }
  // What was granted, in seconds, for messages.
  double budget_seconds() const { return std::chrono::duration<double>(budget_).count(); }

 private:
  Deadline(Clock::time_point at, std::chrono::nanoseconds budget) : at_(at), budget_(budget) {}
  Clock::time_point at_;
  std::chrono::nanoseconds budget_;
};

// First-use skew of 166 s has been seen in healthy runs of large models.
inline constexpr std::chrono::seconds kDefaultDeadline{300};

}  // namespace rowband
