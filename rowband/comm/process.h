// The processes that ranks live in: who is who, who still runs, and what one may open of another.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "rowband/comm/unique_fd.h"

namespace rowband::comm {

// Trivially copyable, so that it travels through any all_gather.
struct ProcessIdentity {
  std::int64_t pid = 0;
  std::uint64_t pid_namespace = 0;    // inode of the namespace; pids mean something only within one
  std::array<char, 40> boot_id = {};  // text; tells machines, and their boots, apart

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
  bool same_machine(const ProcessIdentity& other) const { return boot_id == other.boot_id; }
  // Whether the pid of `other` names that process here too.
  bool sees(const ProcessIdentity& other) const {
    return same_machine(other) && pid_namespace == other.pid_namespace;
  }
};

ProcessIdentity this_process();

// A process that runs while this is constructed (so that its pid cannot mean another).
class PeerProcess {
 public:
  explicit PeerProcess(const ProcessIdentity& identity);

  // False once it has ended, reaped or not. True also when this machine offers no way to know: a
  // foreign pid namespace, or a kernel or container without pidfds.
  bool alive() const;

  // A descriptor of this process for the file that is open there as `fd`: through pidfd_getfd or,
  // where that is forbidden (the seccomp rules of older container runtimes, Yama), through
  // /proc/PID/fd. Throws Error(kUnavailable) naming both calls, their errors and a remedy.
  UniqueFd open_descriptor(int fd) const;

 private:
  const ProcessIdentity identity_;
  const bool visible_;
  UniqueFd pidfd_;
};

}  // namespace rowband::comm
