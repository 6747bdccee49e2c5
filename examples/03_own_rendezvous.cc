// 03: ranks that are processes and find each other by the caller's own means. An engine that has a
// rendezvous already (a TCP store, torch.distributed) hands Rowband one function, all_gather; here
// it is a socket pair between the parent and each child. Everything else, the shared window too,
// Rowband sets up through it.
//
// Run     build/examples/03_own_rendezvous
// Prints  one line per rank, in rank order; rank r's activations hold r + 1, the weight holds 2:
//
//           rank 0 of 3: every element is 1536
//           rank 1 of 3: every element is 1536
//           rank 2 of 3: every element is 1536
//
// What can go wrong
//   peer lost          a process ended: the survivors name it and fail, they do not hang. In the
//                      callback, a closed socket must become an exception, as below.
//   deadline           the callback is given one; past it, it should give up and throw.
//   unavailable        the kernel allows neither pidfd_getfd nor /proc/PID/fd between the ranks (a
//                      container's seccomp rules): the message names the call and the remedy.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "rowband/comm/callbacks.h"
#include "rowband/engines/engine.h"
#include "rowband/numerics/quantize.h"
#include "rowband/op/gemm_all_reduce.h"

namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 96, kCols = 128, kDepth = 128;  // M, N, K of one rank

// Sends or receives all of `bytes` over a socket, or throws.
template <typename Transfer>
void transfer_all(int socket, std::byte* data, std::size_t bytes, short event,
                  rowband::Deadline deadline, const Transfer& transfer) {
  while (bytes > 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count();
    pollfd ready{socket, event, 0};
    const int found = poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, INT32_MAX)));
    if (found == 0) {
      throw rowband::Error(rowband::ErrorCode::kDeadline, "the rendezvous' socket was silent");
    }
    const ssize_t moved = found < 0 ? -1 : transfer(socket, data, bytes);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) throw std::system_error(errno, std::generic_category(), "rendezvous socket");
    if (moved == 0) {
      throw rowband::Error(rowband::ErrorCode::kPeerLost, "a rank closed its rendezvous socket");
    }
    data += moved;
    bytes -= static_cast<std::size_t>(moved);
  }
}

void send_all(int socket, const void* data, std::size_t bytes, rowband::Deadline deadline) {
  auto* begin = const_cast<std::byte*>(static_cast<const std::byte*>(data));  // send() only reads
  transfer_all(socket, begin, bytes, POLLOUT, deadline,
               [](int s, std::byte* at, std::size_t n) { return send(s, at, n, MSG_NOSIGNAL); });
}

void receive_all(int socket, void* data, std::size_t bytes, rowband::Deadline deadline) {
  transfer_all(socket, static_cast<std::byte*>(data), bytes, POLLIN, deadline,
               [](int s, std::byte* at, std::size_t n) { return recv(s, at, n, 0); });
}

// The rendezvous as Rowband wants it: rank 0 collects what all send and gives everyone the whole.
// `sockets` holds rank 0's end of each pair by rank on rank 0, one's own end elsewhere.
struct StarGather {
  int rank;
  std::array<int, kRanks> sockets;

  void operator()(const void* own, void* all, std::size_t bytes, rowband::Deadline deadline) const {
    auto* slots = static_cast<std::byte*>(all);
    if (rank != 0) {
      send_all(sockets[rank], own, bytes, deadline);
      receive_all(sockets[rank], slots, kRanks * bytes, deadline);
      return;
    }
    if (bytes > 0) std::memcpy(slots, own, bytes);
    for (int peer = 1; peer < kRanks; ++peer) {
      receive_all(sockets[peer], slots + peer * bytes, bytes, deadline);
    }
    for (int peer = 1; peer < kRanks; ++peer) {
      send_all(sockets[peer], slots, kRanks * bytes, deadline);
    }
  }
};

// One fused call; the value that every element of the result has.
float fused_value(rowband::Communicator& comm) {
  rowband::EngineOptions engine_options;
  engine_options.local_ranks = kRanks;  // so that the ranks deal the cores out among them
  engine_options.local_rank = comm.rank();
  const std::shared_ptr<rowband::Engine> engine =
      rowband::make_engine(rowband::EngineKind::kHost, comm.rank(), engine_options);
  rowband::GemmAllReduceOptions options;
  options.max_rows = kRows;
  options.cols = kCols;
  options.depth = kDepth;
  const auto op = rowband::GemmAllReduce::create(comm, engine, options);

  const std::vector<rowband::E4m3> x(kRows * kDepth,
                                     rowband::to_e4m3(static_cast<float>(comm.rank() + 1)));
  const std::vector<rowband::E4m3> w(kCols * kDepth, rowband::to_e4m3(2.0f));
  const std::vector<float> x_scales(kRows, 1.0f), w_scales(1, 1.0f);
  const rowband::Output y = op->run({x.data(), kRows, kDepth, kDepth, x_scales.data(), 1, 1},
                                    {w.data(), kCols, kDepth, kDepth, w_scales.data(), 1, 1});
  const bool equal = std::all_of(y.data, y.data + y.rows * y.cols,
                                 [&](rowband::Bf16 value) { return value == y.data[0]; });
  if (!equal) throw std::runtime_error("the elements of the result differ");
  return rowband::to_float(y.data[0]);
}

// Returns the process's exit status.
int rank_main(const StarGather& gather) {
  try {
    const auto comm = rowband::make_callback_communicator(
        {.rank = gather.rank, .size = kRanks, .all_gather = gather, .all_reduce = nullptr});
    const float value = fused_value(*comm);
    // In rank order, so that the output is the same in every run.
    for (int turn = 0; turn < kRanks; ++turn) {
      if (turn == comm->rank()) {
        std::printf("rank %d of %d: every element is %g\n", turn, kRanks,
                    static_cast<double>(value));
        std::fflush(stdout);
      }
      comm->barrier(rowband::Deadline::after(rowband::kDefaultDeadline));
    }
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "03_own_rendezvous: rank %d: %s\n", gather.rank, error.what());
    return EXIT_FAILURE;
  }
}

// Starts rank `rank` as a child; the parent keeps its end of the socket pair in `to_rank`.
pid_t start_rank(int rank, std::array<int, kRanks>& to_rank) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    // The ends of rank 0 must live in rank 0 alone, or nobody would see that it ended.
    close(ends[0]);
    for (int earlier = 1; earlier < rank; ++earlier) close(to_rank[earlier]);
    StarGather gather{rank, {}};
    gather.sockets[rank] = ends[1];
    _exit(rank_main(gather));
  }
  close(ends[1]);
  to_rank[rank] = ends[0];
  return child;
}

}  // namespace

int main() {
  // Processes are made before the first thread: the engine starts its workers after the fork.
  StarGather gather{0, {}};
  std::vector<pid_t> children;
  try {
    for (int rank = 1; rank < kRanks; ++rank) {
      children.push_back(start_rank(rank, gather.sockets));
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "03_own_rendezvous: %s\n", error.what());
    return EXIT_FAILURE;
  }
  int status = rank_main(gather);
  for (int peer = 1; peer < kRanks; ++peer) close(gather.sockets[peer]);
  for (const pid_t child : children) {
    int ended = 0;
    if (waitpid(child, &ended, 0) != child || !WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
      status = EXIT_FAILURE;
    }
  }
  return status;
}
