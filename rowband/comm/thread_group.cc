#include "rowband/comm/thread_group.h"

#include <algorithm>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {

ThreadGroup::ThreadGroup(int size)
    : size_(size),
      arrived_(static_cast<std::size_t>(size), 0),
      gone_(static_cast<std::size_t>(size), 0),
      posts_(static_cast<std::size_t>(size)) {}

void ThreadGroup::open(int rank, const Post& post, Deadline deadline) {
  {
    // Nobody reads the posts here: the previous collective ended with a meeting of all.
    const std::lock_guard lock(mutex_);
    posts_[static_cast<std::size_t>(rank)] = post;
    call_ = post.call;
  }
  meet(rank, Meeting::kOpen, deadline);
}

void ThreadGroup::step(int rank, Deadline deadline) { meet(rank, Meeting::kStep, deadline); }

void ThreadGroup::close(int rank, Deadline deadline) { meet(rank, Meeting::kClose, deadline); }

void ThreadGroup::meet(int rank, Meeting meeting, Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (meeting != Meeting::kOpen) --readers_;
  if (const auto gone = ranks_where(gone_, 1); !failure_ && !gone.empty()) {
    record(ErrorCode::kPeerLost,
           fmt::format("{}: {} gone (the communicator was destroyed)", call_, rank_list(gone)));
  }
  if (failure_) throw_when_unread(lock, meeting);

  const std::uint64_t mine = generation_;
  arrived_[static_cast<std::size_t>(rank)] = 1;
  if (++arrivals_ == size_) {
    if (meeting == Meeting::kOpen) check_same_call();
    if (failure_) throw_when_unread(lock, meeting);
    release_all(meeting);
    lock.unlock();
    changed_.notify_all();
    return;
  }
  const bool ended =
      changed_.wait_until(lock, deadline.at(), [&] { return generation_ != mine || failure_; });
  // A complete meeting counts even if the group failed since: whoever failed it waits for us.
  if (generation_ != mine) return;
  if (!ended) {
    record(ErrorCode::kDeadline,
           fmt::format("{}: {:.3g} s passed and {} had not come", call_, deadline.budget_seconds(),
                       rank_list(ranks_where(arrived_, 0))));
  }
  throw_when_unread(lock, meeting);
}

void ThreadGroup::release_all(Meeting meeting) {
  std::fill(arrived_.begin(), arrived_.end(), char{0});
  arrivals_ = 0;
  readers_ = meeting == Meeting::kClose ? 0 : size_;
  ++generation_;
}

void ThreadGroup::check_same_call() {
  for (int rank = 1; rank < size_; ++rank) {
    if (post(rank).call == post(0).call) continue;
    record(ErrorCode::kDisagreement,
           fmt::format("the ranks are in different collectives: rank 0 called {}, rank {} {}",
                       post(0).call, rank, post(rank).call));
    return;
  }
}

void ThreadGroup::record(ErrorCode code, const std::string& message) {
  if (!failure_) failure_.emplace(code, message);
  changed_.notify_all();
}

void ThreadGroup::throw_when_unread(std::unique_lock<std::mutex>& lock, Meeting meeting) {
  const Error failure = *failure_;
  if (meeting != Meeting::kOpen) {
    changed_.notify_all();
    changed_.wait(lock, [&] { return readers_ == 0; });
  }
  throw failure;
}

void ThreadGroup::leave(int rank) {
  const std::lock_guard lock(mutex_);
  gone_[static_cast<std::size_t>(rank)] = 1;
  if (arrivals_ > 0) {
    record(ErrorCode::kPeerLost, fmt::format("{}: {} gone (the communicator was destroyed)", call_,
                                             rank_list(ranks_where(gone_, 1))));
  }
}

bool ThreadGroup::present(int rank) const {
  const std::lock_guard lock(mutex_);
  return gone_[static_cast<std::size_t>(rank)] == 0;
}

std::vector<int> ThreadGroup::ranks_where(const std::vector<char>& flags, char value) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (flags[static_cast<std::size_t>(rank)] == value) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace rowband::comm
