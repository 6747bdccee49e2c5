#include <fmt/format.h>
#include <hwloc.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>

#include "rowband/cli/doctor.h"
#include "rowband/cli/options.h"
#include "rowband/engines/host/machine.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kUnknown = "unknown";

// The value of the first line "key : value" of a /proc file.
std::optional<std::string> proc_value(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return std::nullopt;
}

std::string meminfo_bytes(const std::string& key) {
  const auto text = proc_value("/proc/meminfo", key);
  std::int64_t kib = 0;
  if (!text || !(std::istringstream(*text) >> kib)) return kUnknown;
  return bytes_text(kib * 1024);
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : kUnknown;
}

std::string shared_memory_text() {
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0) {
    return fmt::format("unavailable: {}", std::generic_category().message(errno));
  }
  const auto bytes = [&fs](auto blocks) {
    return bytes_text(static_cast<std::int64_t>(blocks * fs.f_frsize));
  };
  return fmt::format("{} free of {}", bytes(fs.f_bavail), bytes(fs.f_blocks));
}

std::string available_memory_text() {
  const std::int64_t bytes = host::available_memory();
  return bytes == INT64_MAX ? kUnknown : bytes_text(bytes);
}

// "none" where the cgroup sets no limit; cgroup version 1 says nothing here.
std::string cgroup_limit_text() {
  std::ifstream self("/proc/self/cgroup");
  for (std::string line; std::getline(self, line);) {
    if (line.rfind("0::", 0) != 0) continue;
    const std::string path = fmt::format("/sys/fs/cgroup{}/memory.max", line.substr(3));
    const std::string limit = first_line(path.c_str());
    std::int64_t bytes = 0;
    if (std::istringstream(limit) >> bytes) return bytes_text(bytes);
    return limit == "max" ? "none" : kUnknown;
  }
  return kUnknown;
}

class Topology {
 public:
  Topology()
      : loaded_(hwloc_topology_init(&topology_) == 0 && hwloc_topology_load(topology_) == 0) {}
  ~Topology() {
    if (topology_ != nullptr) hwloc_topology_destroy(topology_);
  }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string count(hwloc_obj_type_t type) const {
    if (!loaded_) return kUnknown;
    const int n = hwloc_get_nbobjs_by_type(topology_, type);
    return n < 0 ? kUnknown : std::to_string(n);
  }

  // "2 x 48.0 KiB"
  std::string caches(hwloc_obj_type_t type) const {
    if (!loaded_) return kUnknown;
    const int n = hwloc_get_nbobjs_by_type(topology_, type);
    if (n <= 0) return "none seen";
    const hwloc_obj_t cache = hwloc_get_obj_by_type(topology_, type, 0);
    return fmt::format("{} x {}", n,
                       bytes_text(static_cast<std::int64_t>(cache->attr->cache.size)));
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  bool loaded_;
};

std::string limit_text(decltype(RLIMIT_MEMLOCK) resource, bool in_bytes) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return kUnknown;
  const auto value = [in_bytes](rlim_t n) -> std::string {
    if (n == RLIM_INFINITY) return "unlimited";
    return in_bytes ? bytes_text(static_cast<std::int64_t>(n)) : std::to_string(n);
  };
  return fmt::format("{} (hard {})", value(limit.rlim_cur), value(limit.rlim_max));
}

// How ranks that are processes hand windows to each other where they do not share a parent.
std::string pidfd_getfd_text() {
#ifdef SYS_pidfd_getfd
  if (syscall(SYS_pidfd_getfd, -1, -1, 0) == -1 && errno == EBADF) return "available";
  return fmt::format("unavailable: {}", std::generic_category().message(errno));
#else
  return "unavailable: not known to these kernel headers";
#endif
}

}  // namespace

ordered_json describe_machine() {
  const Topology topology;
  utsname system{};
  const bool named = uname(&system) == 0;
  return {
      {"CPU", proc_value("/proc/cpuinfo", "model name").value_or(kUnknown)},
      {"cores allowed", fmt::format("{} ({})", host::allowed_cores(), host::allowed_cores_text())},
      {"cores, packages, NUMA nodes",
       fmt::format("{}, {}, {}", topology.count(HWLOC_OBJ_CORE), topology.count(HWLOC_OBJ_PACKAGE),
                   topology.count(HWLOC_OBJ_NUMANODE))},
      {"L1 data caches", topology.caches(HWLOC_OBJ_L1CACHE)},
      {"L2 caches", topology.caches(HWLOC_OBJ_L2CACHE)},
      {"L3 caches", topology.caches(HWLOC_OBJ_L3CACHE)},
      {"memory", meminfo_bytes("MemTotal")},
      {"memory available", available_memory_text()},
      {"cgroup memory limit", cgroup_limit_text()},
      {"/dev/shm", shared_memory_text()},
      {"transparent huge pages", first_line("/sys/kernel/mm/transparent_hugepage/enabled")},
      {"huge pages reserved", proc_value("/proc/meminfo", "HugePages_Total").value_or(kUnknown)},
      {"kernel",
       named ? fmt::format("{} {} {}", system.sysname, system.release, system.machine) : kUnknown}};
}

ordered_json describe_limits() {
  return {{"locked memory", limit_text(RLIMIT_MEMLOCK, true)},
          {"address space", limit_text(RLIMIT_AS, true)},
          {"processes and threads", limit_text(RLIMIT_NPROC, false)},
          {"open files", limit_text(RLIMIT_NOFILE, false)},
          {"pidfd_getfd", pidfd_getfd_text()}};
}

}  // namespace rowband::cli
