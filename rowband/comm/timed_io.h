// Asio's operations, each waited for with a deadline. Only for files that are compiled with Asio.
#pragma once

#include <asio.hpp>
#include <functional>
#include <utility>
#include <vector>

#include "rowband/base/deadline.h"

namespace rowband::comm {

// Used by one thread at a time.
class TimedIo {
 public:
  using Done = std::function<void(const asio::error_code&)>;
  using Failures = std::vector<std::pair<int, asio::error_code>>;  // by rank

  asio::io_context& context() { return context_; }

  // Starts an operation per rank and waits until all have ended, one has failed or the deadline has
  // passed; what has not ended then is cancelled. Returns who failed, those cancelled with
  // timed_out. `start` must see to it that `done` is called once, also after `cancel`.
  Failures complete(const std::vector<int>& ranks, Deadline deadline,
                    const std::function<void(int rank, Done done)>& start,
                    const std::function<void(int rank)>& cancel);

  // One operation: its error, or timed_out.
  asio::error_code complete_one(Deadline deadline, const std::function<void(Done done)>& start,
                                const std::function<void()>& cancel);

  // All of the bytes. The socket is closed when they did not come in time.
  asio::error_code read(asio::ip::tcp::socket& from, void* to, std::size_t bytes,
                        Deadline deadline);
  asio::error_code write(asio::ip::tcp::socket& to, const void* from, std::size_t bytes,
                         Deadline deadline);

  static void close(asio::ip::tcp::socket& socket);

 private:
  asio::io_context context_;
};

}  // namespace rowband::comm
