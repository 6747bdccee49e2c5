#include "rowband/comm/timed_io.h"

#include <optional>

namespace rowband::comm {

TimedIo::Failures TimedIo::complete(const std::vector<int>& ranks, Deadline deadline,
                                    const std::function<void(int rank, Done done)>& start,
                                    const std::function<void(int rank)>& cancel) {
  std::vector<std::optional<asio::error_code>> ended(ranks.size());
  std::size_t left = ranks.size();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    start(ranks[i], [&ended, &left, i, this](const asio::error_code& error) {
      ended[i] = error;
      --left;
      if (left == 0 || error) context_.stop();
    });
  }
  context_.restart();
  context_.run_until(deadline.at());

  Failures failures;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (!ended[i]) {
      failures.emplace_back(ranks[i], asio::error::timed_out);
      cancel(ranks[i]);
    } else if (*ended[i]) {
      failures.emplace_back(ranks[i], *ended[i]);
    }
  }
  while (left > 0) {  // what was cancelled ends at once
    context_.restart();
    context_.run();
  }
  return failures;
}

asio::error_code TimedIo::complete_one(Deadline deadline,
                                       const std::function<void(Done done)>& start,
                                       const std::function<void()>& cancel) {
  const Failures failures = complete(
      {0}, deadline, [&](int, Done done) { start(std::move(done)); }, [&](int) { cancel(); });
  return failures.empty() ? asio::error_code() : failures[0].second;
}

asio::error_code TimedIo::read(asio::ip::tcp::socket& from, void* to, std::size_t bytes,
                               Deadline deadline) {
  return complete_one(
      deadline,
      [&](Done done) {
        asio::async_read(from, asio::buffer(to, bytes),
                         [done](const asio::error_code& error, std::size_t) { done(error); });
      },
      [&] { close(from); });
}

asio::error_code TimedIo::write(asio::ip::tcp::socket& to, const void* from, std::size_t bytes,
                                Deadline deadline) {
  return complete_one(
      deadline,
      [&](Done done) {
        asio::async_write(to, asio::buffer(from, bytes),
                          [done](const asio::error_code& error, std::size_t) { done(error); });
      },
      [&] { close(to); });
}

void TimedIo::close(asio::ip::tcp::socket& socket) {
  asio::error_code ignored;  // it ends either way
  socket.close(ignored);
}

}  // namespace rowband::comm
