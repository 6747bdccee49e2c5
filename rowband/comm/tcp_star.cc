#include "rowband/comm/tcp_star.h"

#include <algorithm>
#include <array>
#include <asio.hpp>
#include <chrono>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/comm/timed_io.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {
namespace {

using asio::ip::tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kMagic = 0x646E6272;  // "rbnd"
// Who connects says at once who it is.
constexpr seconds kForHello{2};
constexpr seconds kForOneAttempt{5};
constexpr milliseconds kBetweenAttempts{50};
constexpr seconds kForBadNews{1};

// What a rank says when it has connected.
struct Hello {
  std::uint32_t magic = kMagic;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
};

// Before bytes, or, with a code, before the text of an error.
struct Frame {
  std::uint32_t magic = kMagic;
  std::uint32_t failed = 0;  // 1 + its ErrorCode
  std::uint64_t bytes = 0;
};

// The earlier of both.
Deadline at_most(Deadline deadline, std::chrono::nanoseconds budget) {
  return deadline.left() < budget ? deadline : Deadline::after(budget);
}

}  // namespace

class TcpStar::Connections {
 public:
  Connections(const TcpRendezvous& rendezvous, Deadline deadline)
      : wanted_(rendezvous), where_(fmt::format("{}:{}", wanted_.host, wanted_.port)) {
    for (int rank = 0; rank < wanted_.size; ++rank) sockets_.emplace_back(io_.context());
    if (wanted_.rank == 0) {
      gather_ranks(deadline);
    } else {
      join_hub(deadline);
    }
  }

  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
    if (wanted_.rank == 0) {
      gather_as_hub(send, recv, bytes, deadline);
    } else {
      gather_through_hub(send, recv, bytes, deadline);
    }
  }

 private:
  tcp::socket& socket_of(int rank) { return sockets_[static_cast<std::size_t>(rank)]; }

  std::vector<int> others() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < wanted_.size; ++rank) ranks.push_back(rank);
    return ranks;
  }

  // --- rank 0 ------------------------------------------------------------------------------------

  tcp::endpoint resolve(Deadline deadline) {
    tcp::resolver resolver(io_.context());
    std::optional<tcp::endpoint> found;
    const asio::error_code error = io_.complete_one(
        deadline,
        [&](TimedIo::Done done) {
          resolver.async_resolve(
              wanted_.host, std::to_string(wanted_.port),
              [&found, done](const asio::error_code& failure, const auto& results) {
                if (!failure && !results.empty()) found = results.begin()->endpoint();
                done(failure);
              });
        },
        [&] { resolver.cancel(); });
    if (!found) {
      fail(ErrorCode::kUnavailable, "rank {}: the host '{}' is not found: {}", wanted_.rank,
           wanted_.host, error.message());
    }
    return *found;
  }

  tcp::acceptor listen(Deadline deadline) {
    try {
      tcp::acceptor acceptor(io_.context());
      if (wanted_.listener >= 0) {
        acceptor.assign(tcp::v4(), wanted_.listener);
        return acceptor;
      }
      const tcp::endpoint at = resolve(deadline);
      acceptor.open(at.protocol());
      acceptor.set_option(tcp::acceptor::reuse_address(true));
      acceptor.bind(at);
      acceptor.listen();
      return acceptor;
    } catch (const asio::system_error& error) {
      fail(ErrorCode::kUnavailable, "rank 0 cannot listen at {}: {}", where_,
           error.code().message());
    }
  }

  void gather_ranks(Deadline deadline) {
    if (wanted_.size == 1) return;
    tcp::acceptor acceptor = listen(deadline);
    for (;;) {
      std::vector<int> missing;
      for (const int rank : others()) {
        if (!socket_of(rank).is_open()) missing.push_back(rank);
      }
      if (missing.empty()) return;
      tcp::socket socket(io_.context());
      const asio::error_code error = io_.complete_one(
          deadline, [&](TimedIo::Done done) { acceptor.async_accept(socket, std::move(done)); },
          [&] { acceptor.close(); });
      if (error == asio::error::timed_out) {
        fail(ErrorCode::kDeadline, "rank 0 at {}: {:.3g} s passed and {} had not come", where_,
             deadline.budget_seconds(), rank_list(missing));
      }
      if (error) fail(ErrorCode::kUnavailable, "rank 0 at {}: {}", where_, error.message());
      welcome(std::move(socket), deadline);
    }
  }

  // Takes in who is one of the missing ranks, and tells others why not.
  void welcome(tcp::socket socket, Deadline deadline) {
    Hello hello;
    const Deadline soon = at_most(deadline, kForHello);
    if (io_.read(socket, &hello, sizeof hello, soon) || hello.magic != kMagic) return;
    std::string why;
    if (hello.size != static_cast<std::uint32_t>(wanted_.size)) {
      why = fmt::format("rank 0 is one of {} ranks, rank {} says it is one of {}", wanted_.size,
                        hello.rank, hello.size);
    } else if (hello.rank == 0 || hello.rank >= hello.size) {
      why = fmt::format("rank {} of {} ranks", hello.rank, hello.size);
    } else if (socket_of(static_cast<int>(hello.rank)).is_open()) {
      why = fmt::format("another process came as rank {} before", hello.rank);
    }
    asio::error_code ignored;  // an option that only makes it faster
    socket.set_option(tcp::no_delay(true), ignored);
    if (!why.empty()) return tell_error(socket, Error(ErrorCode::kDisagreement, why), soon);
    const Frame fine;
    if (io_.write(socket, &fine, sizeof fine, soon)) return;
    socket_of(static_cast<int>(hello.rank)) = std::move(socket);
  }

  void tell_error(tcp::socket& to, const Error& error, Deadline deadline) {
    const std::string text = error.what();
    const Frame frame{kMagic, 1 + static_cast<std::uint32_t>(error.code()), text.size()};
    std::string message(reinterpret_cast<const char*>(&frame), sizeof frame);
    message += text;
    if (io_.write(to, message.data(), message.size(), deadline)) TimedIo::close(to);
  }

  void gather_as_hub(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
    try {
      auto* to = static_cast<char*>(recv);
      std::vector<Frame> frames(static_cast<std::size_t>(wanted_.size));
      frames[0].bytes = bytes;
      read_all(
          [&](int rank) {
            return asio::buffer(&frames[static_cast<std::size_t>(rank)], sizeof(Frame));
          },
          deadline);
      std::vector<std::int64_t> counts;
      for (std::size_t rank = 0; rank < frames.size(); ++rank) {
        if (frames[rank].magic != kMagic) {
          fail(ErrorCode::kCorrupted, "all_gather at {}: rank {} is out of step", where_, rank);
        }
        counts.push_back(static_cast<std::int64_t>(frames[rank].bytes));
      }
      require_same_counts("all_gather", counts);
      if (bytes > 0) std::memcpy(to, send, bytes);
      read_all(
          [&](int rank) {
            return asio::buffer(to + static_cast<std::size_t>(rank) * bytes, bytes);
          },
          deadline);
      const Frame fine{kMagic, 0, bytes * frames.size()};
      const std::array<asio::const_buffer, 2> answer = {asio::buffer(&fine, sizeof fine),
                                                        asio::buffer(recv, bytes * frames.size())};
      throw_if_any(io_.complete(
                       others(), deadline,
                       [&](int rank, TimedIo::Done done) {
                         asio::async_write(
                             socket_of(rank), answer,
                             [done](const asio::error_code& error, std::size_t) { done(error); });
                       },
                       [&](int rank) { TimedIo::close(socket_of(rank)); }),
                   deadline);
    } catch (const Error& error) {
      const Deadline soon = Deadline::after(kForBadNews);
      for (const int rank : others()) {
        if (socket_of(rank).is_open()) tell_error(socket_of(rank), error, soon);
      }
      throw;
    }
  }

  // From every other rank at once, so that all that are missing can be named.
  template <typename Buffer>
  void read_all(const Buffer& buffer_of, Deadline deadline) {
    throw_if_any(io_.complete(
                     others(), deadline,
                     [&](int rank, TimedIo::Done done) {
                       asio::async_read(
                           socket_of(rank), buffer_of(rank),
                           [done](const asio::error_code& error, std::size_t) { done(error); });
                     },
                     [&](int rank) { socket_of(rank).cancel(); }),
                 deadline);
  }

  void throw_if_any(const TimedIo::Failures& failed, Deadline deadline) const {
    std::vector<int> late;
    for (const auto& [rank, error] : failed) {
      if (error == asio::error::timed_out) {
        late.push_back(rank);
        continue;
      }
      fail(ErrorCode::kPeerLost, "all_gather at {}: rank {} is gone ({})", where_, rank,
           error.message());
    }
    if (late.empty()) return;
    fail(ErrorCode::kDeadline, "all_gather at {}: {:.3g} s passed and {} had not come", where_,
         deadline.budget_seconds(), rank_list(late));
  }

  // --- the others --------------------------------------------------------------------------------

  tcp::socket& hub() { return sockets_[0]; }

  void join_hub(Deadline deadline) {
    const tcp::endpoint at = resolve(deadline);
    asio::error_code error;
    for (;;) {
      error = io_.complete_one(
          at_most(deadline, kForOneAttempt),
          [&](TimedIo::Done done) { hub().async_connect(at, std::move(done)); },
          [&] { TimedIo::close(hub()); });
      if (!error) break;
      TimedIo::close(hub());
      if (deadline.left() < kBetweenAttempts) {
        fail(ErrorCode::kDeadline, "rank {}: {:.3g} s passed without rank 0 at {}: {}",
             wanted_.rank, deadline.budget_seconds(), where_, error.message());
      }
      std::this_thread::sleep_for(kBetweenAttempts);
    }
    hub().set_option(tcp::no_delay(true), error);  // only makes it faster
    const Hello hello{kMagic, static_cast<std::uint32_t>(wanted_.rank),
                      static_cast<std::uint32_t>(wanted_.size)};
    throw_if(io_.write(hub(), &hello, sizeof hello, deadline), "joining", deadline);
    read_answer("joining", deadline);
  }

  void throw_if(const asio::error_code& error, const char* what, Deadline deadline) const {
    if (!error) return;
    if (error == asio::error::timed_out) {
      fail(ErrorCode::kDeadline, "{}: rank {} waited {:.3g} s for rank 0 at {}", what, wanted_.rank,
           deadline.budget_seconds(), where_);
    }
    fail(ErrorCode::kPeerLost, "{}: rank {} lost rank 0 at {}: {}", what, wanted_.rank, where_,
         error.message());
  }

  // The hub's frame, when it is not an error, which is thrown.
  Frame read_answer(const char* what, Deadline deadline) {
    Frame frame;
    throw_if(io_.read(hub(), &frame, sizeof frame, deadline), what, deadline);
    if (frame.magic != kMagic) {
      fail(ErrorCode::kUnavailable, "{}: what listens at {} is not rank 0 of these ranks", what,
           where_);
    }
    if (frame.failed == 0) return frame;
    std::string text(static_cast<std::size_t>(std::min<std::uint64_t>(frame.bytes, 1 << 16)), '\0');
    throw_if(io_.read(hub(), text.data(), text.size(), deadline), what, deadline);
    throw Error(static_cast<ErrorCode>(frame.failed - 1), text);
  }

  void gather_through_hub(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
    constexpr const char* kWhat = "all_gather";
    const Frame own{kMagic, 0, bytes};
    throw_if(io_.write(hub(), &own, sizeof own, deadline), kWhat, deadline);
    throw_if(io_.write(hub(), send, bytes, deadline), kWhat, deadline);
    const std::size_t all = bytes * static_cast<std::size_t>(wanted_.size);
    if (read_answer(kWhat, deadline).bytes != all) {
      fail(ErrorCode::kCorrupted, "all_gather at {}: rank {} is out of step", where_, wanted_.rank);
    }
    throw_if(io_.read(hub(), recv, all, deadline), kWhat, deadline);
  }

  const TcpRendezvous wanted_;
  const std::string where_;
  TimedIo io_;
  std::vector<tcp::socket> sockets_;  // rank 0: by rank; the others: rank 0's first
};

TcpStar::TcpStar(const TcpRendezvous& rendezvous, Deadline deadline)
    : connections_(std::make_unique<Connections>(rendezvous, deadline)) {}

TcpStar::~TcpStar() = default;

void TcpStar::all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
  connections_->all_gather(send, recv, bytes, deadline);
}

}  // namespace rowband::comm
