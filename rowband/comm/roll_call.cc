#include "rowband/comm/roll_call.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <ctime>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {
namespace {

// How often a sleeping rank looks whether its peer still lives.
constexpr std::chrono::milliseconds kLookAround{20};

static_assert(std::atomic_ref<std::uint32_t>::is_always_lock_free);

// Not FUTEX_PRIVATE: the word is shared between processes.
void futex_wait(std::uint32_t& word, std::uint32_t seen, std::chrono::nanoseconds at_most) {
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(at_most.count() / 1'000'000'000);
  timeout.tv_nsec = static_cast<long>(at_most.count() % 1'000'000'000);
  // Every outcome, EAGAIN, EINTR and ETIMEDOUT among them, means: look again.
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(std::uint32_t& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

std::atomic_ref<std::uint32_t> atomic(std::uint32_t& word) {
  return std::atomic_ref<std::uint32_t>(word);
}

}  // namespace

RollCall::RollCall(std::shared_ptr<SymmetricMemory> memory, int rank, int size,
                   PeerAlive peer_alive)
    : memory_(std::move(memory)), rank_(rank), size_(size), peer_alive_(std::move(peer_alive)) {}

RankSlot& RollCall::slot(int rank) const {
  return *reinterpret_cast<RankSlot*>(memory_->part(rank));
}

std::uint32_t RollCall::come() {
  RankSlot& own = slot(rank_);
  // Release: what this rank wrote before it came can be seen by who finds it there.
  const std::uint32_t meeting = atomic(own.meetings).fetch_add(1, std::memory_order_release) + 1;
  futex_wake_all(own.meetings);
  return meeting;
}

bool RollCall::has_come(int rank, std::uint32_t meeting) const {
  const auto meetings = atomic(slot(rank).meetings).load(std::memory_order_acquire);
  return static_cast<std::int32_t>(meetings - meeting) >= 0;
}

void RollCall::wait_for_all(std::uint32_t meeting, std::string_view call, Deadline deadline) {
  for (int peer = 0; peer < size_; ++peer) {
    while (!has_come(peer, meeting)) {
      std::uint32_t& word = slot(peer).meetings;
      const auto seen = atomic(word).load(std::memory_order_acquire);
      require_all_can_come(meeting, call);
      if (deadline.passed()) {
        if (has_come(peer, meeting)) continue;
        throw_deadline(meeting, call, deadline);
      }
      futex_wait(word, seen, std::min<std::chrono::nanoseconds>(deadline.left(), kLookAround));
    }
  }
}

void RollCall::require_all_can_come(std::uint32_t meeting, std::string_view call) const {
  std::vector<int> lost;
  std::string why;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || has_come(peer, meeting)) continue;
    const char* reason = nullptr;
    if (state(peer) == RankState::kFailed) {
      reason = "failed and gave up";
    } else if (state(peer) != RankState::kWorking) {
      reason = "communicator destroyed";
    } else if (!peer_alive_(peer)) {
      reason = "process or thread ended";
    }
    // It may have come just before it ended.
    if (reason == nullptr || has_come(peer, meeting)) continue;
    lost.push_back(peer);
    why = reason;
  }
  if (!lost.empty()) {
    fail(ErrorCode::kPeerLost, "{}: {} gone ({})", call, rank_list(lost), why);
  }
}

void RollCall::throw_deadline(std::uint32_t meeting, std::string_view call,
                              Deadline deadline) const {
  const std::vector<int> absent = missing(meeting);
  if (absent.empty()) {
    fail(ErrorCode::kDeadline, "{}: {:.3g} s passed; all ranks had come but did not finish", call,
         deadline.budget_seconds());
  }
  fail(ErrorCode::kDeadline, "{}: {:.3g} s passed and {} had not come", call,
       deadline.budget_seconds(), rank_list(absent));
}

std::vector<int> RollCall::missing(std::uint32_t meeting) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (!has_come(rank, meeting)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> RollCall::ranks_in(RankState wanted) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (state(rank) == wanted) ranks.push_back(rank);
  }
  return ranks;
}

void RollCall::set_state(RankState state) {
  RankSlot& own = slot(rank_);
  atomic(own.state).store(static_cast<std::uint32_t>(state), std::memory_order_seq_cst);
  futex_wake_all(own.meetings);
}

RankState RollCall::state(int rank) const {
  return static_cast<RankState>(atomic(slot(rank).state).load(std::memory_order_seq_cst));
}

void RollCall::tell_count(int parity, std::int64_t count) {
  std::atomic_ref<std::int64_t>(slot(rank_).counts[parity]).store(count, std::memory_order_relaxed);
}

std::vector<std::int64_t> RollCall::counts(int parity) const {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < size_; ++rank) {
    all.push_back(
        std::atomic_ref<std::int64_t>(slot(rank).counts[parity]).load(std::memory_order_relaxed));
  }
  return all;
}

}  // namespace rowband::comm
