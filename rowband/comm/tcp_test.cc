#include "rowband/comm/tcp.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/conformance.h"
#include "rowband/comm/forked_ranks.h"
#include "rowband/comm/unique_fd.h"

namespace rowband {
namespace {

using namespace std::chrono_literals;
using comm::RankOutcomes;
using comm::UniqueFd;
using comm::conformance::expect_error;
using comm::conformance::soon;

// A socket that listens on a port of its own.
struct Listener {
  UniqueFd socket;
  int port = 0;
};

Listener listen_somewhere() {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 ||
      listen(socket.get(), 8) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    fail(ErrorCode::kIo, "no port to listen on");
  }
  return {std::move(socket), ntohs(at.sin_port)};
}

int free_port() { return listen_somewhere().port; }

UniqueFd connect_to(int port) {
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<std::uint16_t>(port));
  while (connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
    std::this_thread::sleep_for(5ms);
  }
  return socket;
}

void require(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kCorrupted, "{}", what);
}

// body(rank's rendezvous) in a process per rank.
RankOutcomes run_ranks_by_tcp(int size, const std::function<void(const TcpRendezvous&)>& body) {
  const int port = free_port();
  return comm::run_forked(size, 1, [&](const CommunicatorCallbacks& callbacks) {
    alarm(100);
    body({"127.0.0.1", port, callbacks.rank, size});
  });
}

void expect_all_fine(const RankOutcomes& outcomes) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank], "") << "rank " << rank;
  }
}

TEST(Tcp, R12_D03_ConformsAsProcesses) {
  for (const int size : {1, 2, 4}) {
    expect_all_fine(run_ranks_by_tcp(size, [](const TcpRendezvous& rendezvous) {
      const auto comm = make_tcp_communicator(rendezvous);
      require(comm->kind() == "tcp", "kind");
      comm::conformance::check_all_gather(*comm, (3 << 20) + 1);
      comm::conformance::check_all_reduce_exact(*comm, 70001);
      comm::conformance::check_all_reduce_bits(*comm, 5003);
      comm::conformance::check_symmetric_memory(*comm, 1 << 16);
      comm::conformance::check_interleaving(*comm, 100);
      if (comm->size() == 1) return;
      comm::conformance::check_count_disagreement(*comm);
      comm::conformance::check_agreement(*comm);
    }));
  }
}

TEST(Tcp, RanksMayComeBeforeRankZeroListens) {
  expect_all_fine(run_ranks_by_tcp(3, [](const TcpRendezvous& rendezvous) {
    if (rendezvous.rank == 0) std::this_thread::sleep_for(300ms);
    make_tcp_communicator(rendezvous)->barrier(soon());
  }));
}

TEST(Tcp, TakesOverADescriptorThatListens) {
  const Listener listener = listen_somewhere();
  expect_all_fine(comm::run_forked(3, 1, [&](const CommunicatorCallbacks& callbacks) {
    TcpRendezvous rendezvous{"127.0.0.1", listener.port, callbacks.rank, 3};
    if (callbacks.rank == 0) rendezvous.listener = listener.socket.get();
    comm::conformance::check_all_gather(*make_tcp_communicator(rendezvous), 10000);
  }));
}

TEST(Tcp, TorchrunsRanksMeetAtThePortAfterItsOwn) {
  const TcpRendezvous rendezvous = torchrun_rendezvous(3, 8, "node7", 29500);
  EXPECT_EQ(rendezvous.host, "node7");
  EXPECT_EQ(rendezvous.port, 29501);
  EXPECT_EQ(rendezvous.rank, 3);
  EXPECT_EQ(rendezvous.size, 8);
}

TEST(Tcp, D06_RanksThatDoNotComeAreNamedWithHostAndPort) {
  const int port = free_port();
  expect_error(ErrorCode::kDeadline,
               {fmt::format("127.0.0.1:{}", port), "0.2 s", "ranks 1, 2 had not come"}, [&] {
                 make_tcp_communicator({"127.0.0.1", port, 0, 3}, Deadline::after(200ms));
               });
  expect_error(
      ErrorCode::kDeadline,
      {"rank 2", fmt::format("without rank 0 at 127.0.0.1:{}", port), "Connection refused"}, [&] {
        make_tcp_communicator({"127.0.0.1", port, 2, 3}, Deadline::after(200ms));
      });
}

TEST(Tcp, RanksOfAnotherSizeAreToldBothNumbers) {
  const auto outcomes = run_ranks_by_tcp(2, [](const TcpRendezvous& rendezvous) {
    if (rendezvous.rank == 0) {
      expect_error(ErrorCode::kDeadline, {"rank 1 had not come"},
                   [&] { make_tcp_communicator(rendezvous, Deadline::after(1s)); });
      return;
    }
    TcpRendezvous other = rendezvous;
    other.size = 4;
    expect_error(ErrorCode::kDisagreement,
                 {"rank 0 is one of 2 ranks", "rank 1 says it is one of 4"},
                 [&] { make_tcp_communicator(other); });
  });
  expect_all_fine(outcomes);
}

TEST(Tcp, TheSameRankTwiceIsSentAway) {
  const int port = free_port();
  expect_all_fine(comm::run_forked(4, 1, [&](const CommunicatorCallbacks& callbacks) {
    const int rank = std::min(callbacks.rank, 2);  // 0, 1, 2, 2
    if (callbacks.rank == 1) std::this_thread::sleep_for(500ms);
    if (callbacks.rank == 3) {
      std::this_thread::sleep_for(200ms);
      expect_error(ErrorCode::kDisagreement, {"another process came as rank 2 before"}, [&] {
        make_tcp_communicator({"127.0.0.1", port, rank, 3});
      });
      return;
    }
    make_tcp_communicator({"127.0.0.1", port, rank, 3})->barrier(soon());
  }));
}

TEST(Tcp, L05_StrangersAtThePortDoNoHarm) {
  const int port = free_port();
  expect_all_fine(comm::run_forked(3, 1, [&](const CommunicatorCallbacks& callbacks) {
    if (callbacks.rank == 2) {  // no rank at all
      const UniqueFd silent = connect_to(port);
      const UniqueFd loud = connect_to(port);
      require(send(loud.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18, "sending");
      std::this_thread::sleep_for(3s);
      return;
    }
    if (callbacks.rank == 1) std::this_thread::sleep_for(300ms);
    make_tcp_communicator({"127.0.0.1", port, callbacks.rank, 2})->barrier(soon());
  }));
}

TEST(Tcp, AnotherServiceAtThePortIsNotTakenForRankZero) {
  const Listener listener = listen_somewhere();
  std::jthread service([&] {
    const UniqueFd caller(accept(listener.socket.get(), nullptr, nullptr));
    const char answer[] = "HTTP/1.1 400 Bad Request\r\n";
    send(caller.get(), answer, sizeof answer, MSG_NOSIGNAL);
    std::this_thread::sleep_for(100ms);
  });
  expect_error(ErrorCode::kUnavailable, {"is not rank 0 of these ranks"}, [&] {
    make_tcp_communicator({"127.0.0.1", listener.port, 1, 2});
  });
}

TEST(Tcp, BadPlacesAreRefusedInWords) {
  expect_error(ErrorCode::kUnavailable, {"no-such-host.invalid", "not found"}, [] {
    make_tcp_communicator({"no-such-host.invalid", 4000, 0, 2});
  });
  const Listener taken = listen_somewhere();
  expect_error(ErrorCode::kUnavailable, {"cannot listen at 127.0.0.1", "in use"}, [&] {
    make_tcp_communicator({"127.0.0.1", taken.port, 0, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"port 0", "65535"}, [] {
    make_tcp_communicator({"127.0.0.1", 0, 0, 2});
  });
  expect_error(ErrorCode::kInvalidArgument, {"rank 2 of 2"}, [] {
    make_tcp_communicator({"127.0.0.1", 4000, 2, 2});
  });
}

TEST(Tcp, D06_AKilledRankIsNamedOnAllOthers) {
  const auto outcomes = run_ranks_by_tcp(4, [](const TcpRendezvous& rendezvous) {
    const auto comm = make_tcp_communicator(rendezvous);
    comm->barrier(soon());
    if (comm->rank() == 2) raise(SIGKILL);
    for (int again = 0; again < 2; ++again) {
      expect_error(ErrorCode::kPeerLost, {"rank 2 is gone"}, [&] { comm->barrier(soon()); });
    }
    // Its connections end a moment before it does.
    const Deadline known = soon();
    while (comm->peer_alive(2) && !known.passed()) std::this_thread::sleep_for(1ms);
    require(!comm->peer_alive(2), "rank 2 is known to be dead");
  });
  for (const int rank : {0, 1, 3}) EXPECT_EQ(outcomes[rank], "") << rank;
  EXPECT_EQ(outcomes[2], "signal 9");
}

TEST(Tcp, D06_RankZeroKilledIsNamedOnAllOthers) {
  const auto outcomes = run_ranks_by_tcp(3, [](const TcpRendezvous& rendezvous) {
    const auto comm = make_tcp_communicator(rendezvous);
    if (comm->rank() == 0) raise(SIGKILL);
    expect_error(ErrorCode::kPeerLost, {"lost rank 0"}, [&] { comm->barrier(soon()); });
  });
  for (const int rank : {1, 2}) EXPECT_EQ(outcomes[rank], "") << rank;
}

TEST(Tcp, D06_ASilentRankIsADeadlineThatNamesItOnAllOthers) {
  expect_all_fine(run_ranks_by_tcp(3, [](const TcpRendezvous& rendezvous) {
    const auto comm = make_tcp_communicator(rendezvous);
    if (comm->rank() == 1) return std::this_thread::sleep_for(2s);
    const auto budget = comm->rank() == 0 ? 500ms : 5000ms;  // rank 0 tells rank 2
    expect_error(ErrorCode::kDeadline, {"0.5 s", "rank 1 had not come"},
                 [&] { comm->barrier(Deadline::after(budget)); });
  }));
}

}  // namespace
}  // namespace rowband
