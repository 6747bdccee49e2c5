#include "rowband/comm/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "rowband/base/fail.h"

namespace rowband::comm {
namespace {

std::string errno_text(int error) {
  return fmt::format("{} (errno {})", std::strerror(error), error);
}

}  // namespace

ProcessIdentity this_process() {
  ProcessIdentity identity;
  identity.pid = getpid();
  struct stat status = {};
  if (stat("/proc/self/ns/pid", &status) == 0) identity.pid_namespace = status.st_ino;
  // Without /proc both stay empty: ranks then take each other for neighbours, and opening a peer's
  // window tells them, in words, if they are not.
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  file.read(identity.boot_id.data(), static_cast<std::streamsize>(identity.boot_id.size()));
  return identity;
}

PeerProcess::PeerProcess(const ProcessIdentity& identity)
    : identity_(identity), visible_(this_process().sees(identity)) {
  if (visible_) {
    pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, identity_.pid, 0)));
  }
}

bool PeerProcess::alive() const {
  if (!pidfd_) return true;
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return poll(&ended, 1, 0) <= 0;
}

UniqueFd PeerProcess::open_descriptor(int fd) const {
  if (!visible_) {
    fail(ErrorCode::kUnavailable,
         "process {} of the peer is in another pid namespace or on another machine, so its memory "
         "cannot be opened; run all ranks in one container, or share the namespace "
         "(docker run --pid=container:NAME)",
         identity_.pid);
  }
  UniqueFd duplicate(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd_.get(), fd, 0)));
  if (duplicate) return duplicate;
  const int getfd_error = errno;

  const std::string path = fmt::format("/proc/{}/fd/{}", identity_.pid, fd);
  UniqueFd opened(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (opened) return opened;
  const int open_error = errno;
  fail(ErrorCode::kUnavailable,
       "cannot open the peer's memory: pidfd_getfd(pid {}, fd {}): {}; open({}): {}; run all ranks "
       "as "
       "one user, and in a container allow it (docker run --cap-add=SYS_PTRACE, or a seccomp "
       "profile "
       "with pidfd_getfd)",
       identity_.pid, fd, errno_text(getfd_error), path, errno_text(open_error));
}

}  // namespace rowband::comm
