#include "rowband/comm/prefault.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "rowband/base/fail.h"

// Linux 5.14; in the headers of glibc 2.35 and later.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace rowband::comm {

std::size_t available_memory() {
  std::ifstream meminfo("/proc/meminfo");
  std::string name;
  std::size_t kibibytes = 0;
  std::string unit;
  while (meminfo >> name >> kibibytes && std::getline(meminfo, unit)) {
    if (name == "MemAvailable:") return kibibytes * 1024;
  }
  return std::numeric_limits<std::size_t>::max();
}

bool prefault(std::byte* address, std::size_t length, std::string_view what) {
  while (madvise(address, length, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return false;
    // EFAULT is what would have been a SIGBUS: the file system is full.
    fail(ErrorCode::kOutOfMemory, "the {} bytes of {} cannot be had: {} (errno {})", length, what,
         errno == EFAULT ? "the shared memory file system is full" : std::strerror(errno), errno);
  }
  return true;
}

}  // namespace rowband::comm
