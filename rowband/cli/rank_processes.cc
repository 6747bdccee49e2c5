#include "rowband/cli/rank_processes.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/cli/exit_codes.h"

extern char** environ;

namespace rowband::cli {
namespace {

using Clock = std::chrono::steady_clock;

// For the others' own errors, which say more than a kill.
constexpr std::chrono::seconds kGrace{10};
// Between the signal that asks and the one that does not.
constexpr std::chrono::seconds kToObey{5};
constexpr std::chrono::milliseconds kBetweenLooks{200};

struct RankProcess {
  pid_t pid = 0;
  bool ended = false;
};

std::string errno_text() { return std::strerror(errno); }

// Zero-terminated strings as exec wants them.
class StringArray {
 public:
  explicit StringArray(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& text : strings_) pointers_.push_back(text.data());
    pointers_.push_back(nullptr);
  }
  char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string text; std::getline(file, text, '\0');) arguments.push_back(text);
  if (arguments.empty()) fail(ErrorCode::kIo, "/proc/self/cmdline cannot be read");
  return arguments;
}

// A socket that listens at a port of its own on this machine, and that port.
struct Listener {
  int socket = -1;
  int port = 0;
};

Listener listen_here() {
  Listener listener;
  listener.socket = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  if (listener.socket < 0 ||
      bind(listener.socket, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0 ||
      listen(listener.socket, kMaxRanks) != 0 ||
      getsockname(listener.socket, reinterpret_cast<sockaddr*>(&at), &length) != 0) {
    fail(ErrorCode::kIo, "no port for the ranks to meet at: {}", errno_text());
  }
  listener.port = ntohs(at.sin_port);
  return listener;
}

std::vector<std::string> environment_of(int rank, int world, const Listener& listener) {
  const std::vector<std::pair<std::string, std::string>> told = {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(world)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(world)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(std::min(listener.port, 65534))},
      {kPortVariable, std::to_string(listener.port)},
      {kListenerVariable, std::to_string(listener.socket)}};
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto replaced = std::ranges::any_of(
        told, [&](const auto& one) { return text.starts_with(one.first + "="); });
    if (!replaced) all.push_back(text);
  }
  for (const auto& [name, value] : told) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

// The signals that this process waits for, kept from their usual effect while it does.
class HeldSignals {
 public:
  HeldSignals() {
    sigemptyset(&held_);
    for (const int one : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) sigaddset(&held_, one);
    pthread_sigmask(SIG_BLOCK, &held_, &before_);
  }
  ~HeldSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  const sigset_t& before() const { return before_; }

  // The next one, or 0 when none came in time.
  int wait(std::chrono::milliseconds at_most) const {
    const timespec time{at_most.count() / 1000, at_most.count() % 1000 * 1'000'000};
    return std::max(sigtimedwait(&held_, nullptr, &time), 0);
  }

 private:
  sigset_t held_, before_;
};

class RankProcesses {
 public:
  explicit RankProcesses(int world) {
    const Listener listener = listen_here();
    StringArray arguments(own_arguments());
    const pid_t launcher = getpid();
    for (int rank = 0; rank < world; ++rank) {
      StringArray environment(environment_of(rank, world, listener));
      const pid_t pid = fork();
      if (pid == 0) become_rank(rank == 0 ? -1 : listener.socket, launcher, arguments, environment);
      if (pid < 0) {
        const std::string why = errno_text();
        close(listener.socket);
        signal_all(SIGKILL);
        fail(ErrorCode::kIo, "rank {}'s process cannot be started: {}", rank, why);
      }
      ranks_.push_back({pid});
    }
    close(listener.socket);
  }

  // Until all have ended.
  int wait() {
    std::optional<Clock::time_point> kill_at;
    while (reap()) {
      const auto now = Clock::now();
      if (!kill_at && status_ != kOk) kill_at = now + kGrace;
      if (kill_at && now >= *kill_at) {
        signal_all(std::exchange(asked_, true) ? SIGKILL : SIGTERM);
        kill_at = now + kToObey;
      }
      const int caught = signals_.wait(kBetweenLooks);
      if (caught == 0 || caught == SIGCHLD) continue;
      asked_ = true;
      signal_all(caught);
      kill_at = Clock::now() + kToObey;
    }
    return status_;
  }

 private:
  // In the child, between fork and exec: calls that are safe there alone.
  [[noreturn]] void become_rank(int descriptor_to_close, pid_t launcher, StringArray& arguments,
                                StringArray& environment) const {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) _exit(kFailed);  // it ended before that was set
    if (descriptor_to_close >= 0) close(descriptor_to_close);
    pthread_sigmask(SIG_SETMASK, &signals_.before(), nullptr);
    execve("/proc/self/exe", arguments.get(), environment.get());
    _exit(127);
  }

  // Takes in who has ended; true while somebody runs.
  bool reap() {
    bool running = false;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].ended) continue;
      int status = 0;
      ranks_[rank].ended = waitpid(ranks_[rank].pid, &status, WNOHANG) == ranks_[rank].pid;
      running = running || !ranks_[rank].ended;
      if (ranks_[rank].ended) note_end(rank, status);
    }
    return running;
  }

  void note_end(std::size_t rank, int status) {
    if (WIFEXITED(status)) {
      status_ = std::max(status_, WEXITSTATUS(status));
      return;
    }
    status_ = std::max<int>(status_, kFailed);
    if (asked_) return;
    const int signal = WTERMSIG(status);
    fmt::print(stderr, "rowband: error: the process of rank {} was ended by signal {} ({})\n", rank,
               signal, strsignal(signal));
  }

  void signal_all(int signal) const {
    for (const RankProcess& rank : ranks_) {
      if (!rank.ended) kill(rank.pid, signal);
    }
  }

  const HeldSignals signals_;
  std::vector<RankProcess> ranks_;
  int status_ = kOk;    // the largest so far
  bool asked_ = false;  // they have been sent a signal
};

}  // namespace

int run_rank_processes(int world) { return RankProcesses(world).wait(); }

}  // namespace rowband::cli
