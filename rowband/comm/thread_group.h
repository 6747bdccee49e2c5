// Where the threads of one group meet. Waits sleep on a condition variable: there may be more ranks
// than cores.
//
// A collective is open(), any number of step(), close(). Between open() and close() the ranks read
// the buffers that the others posted, so no rank may leave a collective, not even by an exception,
// while another still reads: a failing rank first waits until every reader has come to its next
// meeting. That wait needs no deadline: a reader waits for nothing on its way there.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/base/deadline.h"
#include "rowband/base/error.h"

namespace rowband::comm {

// What a rank brings to a collective. Readable by all ranks until they close it.
struct Post {
  std::string_view call;
  const void* data = nullptr;
  std::int64_t count = 0;
};

class ThreadGroup {
 public:
  explicit ThreadGroup(int size);

  int size() const { return size_; }

  // All three return once every rank has come, and throw the group's failure otherwise: a deadline
  // passed, a rank gone, or an earlier failure, which stays for ever.
  void open(int rank, const Post& post, Deadline deadline);
  void step(int rank, Deadline deadline);
  void close(int rank, Deadline deadline);

  // Between open() and close() only.
  const Post& post(int rank) const { return posts_[static_cast<std::size_t>(rank)]; }

  // The rank's communicator is destroyed. Who waits for it fails.
  void leave(int rank);
  bool present(int rank) const;

 private:
  enum class Meeting { kOpen, kStep, kClose };

  void meet(int rank, Meeting meeting, Deadline deadline);
  void release_all(Meeting meeting);
  void check_same_call();
  void record(ErrorCode code, const std::string& message);
  [[noreturn]] void throw_when_unread(std::unique_lock<std::mutex>& lock, Meeting meeting);
  std::vector<int> ranks_where(const std::vector<char>& flags, char value) const;

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t generation_ = 0;  // how many meetings were complete
  std::vector<char> arrived_;     // at the meeting in progress
  int arrivals_ = 0;
  int readers_ = 0;  // ranks let go of a meeting inside a collective that have not come to the next
  std::vector<char> gone_;
  std::vector<Post> posts_;
  std::string call_;  // the collective in progress, for messages
  std::optional<Error> failure_;
};

}  // namespace rowband::comm
