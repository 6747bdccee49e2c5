#include "rowband/comm/forked_ranks.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/unique_fd.h"

namespace rowband::comm {
namespace {

// A socket pair per rank: one end with rank 0, the hub, the other with the rank.
struct Star {
  std::vector<UniqueFd> at_hub;
  std::vector<UniqueFd> at_rank;
};

Star make_star(int size) {
  Star star;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      fail(ErrorCode::kIo, "socketpair: {}", std::strerror(errno));
    }
    star.at_hub.emplace_back(ends[0]);
    star.at_rank.emplace_back(ends[1]);
  }
  return star;
}

void wait_until_ready(int fd, short event, Deadline deadline) {
  pollfd ready{fd, event, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left());
  if (poll(&ready, 1, static_cast<int>(left.count()) + 1) == 0) {
    fail(ErrorCode::kDeadline, "all_gather over sockets: the deadline passed");
  }
}

void send_all(int fd, const void* data, std::size_t bytes, Deadline deadline) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    wait_until_ready(fd, POLLOUT, deadline);
    const ssize_t sent = send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (sent <= 0) fail(ErrorCode::kPeerLost, "send: {}", std::strerror(errno));
    from += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
}

void receive_all(int fd, void* data, std::size_t bytes, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    wait_until_ready(fd, POLLIN, deadline);
    const ssize_t got = recv(fd, to, bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) fail(ErrorCode::kPeerLost, "a rank closed its socket");
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
}

void gather(const Star& star, int rank, int size, const void* send, void* recv, std::size_t bytes,
            Deadline deadline) {
  const auto total = bytes * static_cast<std::size_t>(size);
  if (rank != 0) {
    const int hub = star.at_rank[static_cast<std::size_t>(rank)].get();
    send_all(hub, send, bytes, deadline);
    receive_all(hub, recv, total, deadline);
    return;
  }
  std::memcpy(recv, send, bytes);
  for (std::size_t peer = 1; peer < star.at_hub.size(); ++peer) {
    receive_all(star.at_hub[peer].get(), static_cast<char*>(recv) + peer * bytes, bytes, deadline);
  }
  for (std::size_t peer = 1; peer < star.at_hub.size(); ++peer) {
    send_all(star.at_hub[peer].get(), recv, total, deadline);
  }
}

// In the child: keeps only the ends of its own ranks, so that the end of a process closes them.
void keep_own_ends(Star& star, int first, int last) {
  for (int rank = 0; rank < static_cast<int>(star.at_rank.size()); ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    if (rank < first || rank >= last) star.at_rank[index] = UniqueFd();
    if (first > 0) star.at_hub[index] = UniqueFd();
  }
}

std::string run_ranks_here(const Star& star, int first, int last, int size,
                           const std::function<void(const CommunicatorCallbacks&)>& body) {
  std::mutex mutex;
  std::string first_error;
  const auto run = [&](int rank) {
    CommunicatorCallbacks callbacks;
    callbacks.rank = rank;
    callbacks.size = size;
    callbacks.all_gather = [&star, rank, size](const void* send, void* recv, std::size_t bytes,
                                               Deadline deadline) {
      gather(star, rank, size, send, recv, bytes, deadline);
    };
    try {
      body(callbacks);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      if (first_error.empty()) first_error = fmt::format("rank {}: {}", rank, error.what());
    }
  };
  if (last - first == 1) {
    run(first);
    return first_error;
  }
  {
    std::vector<std::jthread> threads;
    for (int rank = first; rank < last; ++rank) threads.emplace_back(run, rank);
  }
  return first_error;
}

struct Child {
  pid_t pid = 0;
  UniqueFd report;
};

std::string outcome_of(const Child& child) {
  std::string report;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = read(child.report.get(), buffer, sizeof buffer)) > 0) {
    report.append(buffer, static_cast<std::size_t>(got));
  }
  int status = 0;
  waitpid(child.pid, &status, 0);
  if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  if (report.empty() && WEXITSTATUS(status) != 0) {
    return fmt::format("exit status {}", WEXITSTATUS(status));
  }
  return report;
}

}  // namespace

RankOutcomes run_forked(int size, int ranks_per_process,
                        const std::function<void(const CommunicatorCallbacks&)>& body) {
  Star star = make_star(size);
  std::vector<Child> children;
  for (int first = 0; first < size; first += ranks_per_process) {
    int ends[2];
    if (pipe(ends) != 0) fail(ErrorCode::kIo, "pipe: {}", std::strerror(errno));
    UniqueFd reader(ends[0]);
    UniqueFd writer(ends[1]);
    std::fflush(nullptr);
    const pid_t pid = fork();
    if (pid < 0) fail(ErrorCode::kIo, "fork: {}", std::strerror(errno));
    if (pid == 0) {
      const int last = std::min(first + ranks_per_process, size);
      keep_own_ends(star, first, last);
      const std::string error = run_ranks_here(star, first, last, size, body);
      const bool told =
          write(writer.get(), error.data(), error.size()) == static_cast<ssize_t>(error.size());
      _exit(told && error.empty() ? 0 : 1);
    }
    children.push_back({pid, std::move(reader)});
  }
  star = Star();
  RankOutcomes outcomes;
  for (const Child& child : children) outcomes.push_back(outcome_of(child));
  return outcomes;
}

void forbid_pidfd_getfd(bool also_open) {
  constexpr std::uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;
  const std::uint32_t open_verdict = also_open ? kRefuse : SECCOMP_RET_ALLOW;
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_getfd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefuse),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[2])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_RDWR, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, open_verdict),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    fail(ErrorCode::kUnavailable, "no seccomp filter here: {}", std::strerror(errno));
  }
  if (syscall(SYS_pidfd_getfd, -1, 0, 0) != -1 || errno != EPERM) {
    fail(ErrorCode::kUnavailable, "the seccomp filter does not work");
  }
}

}  // namespace rowband::comm
