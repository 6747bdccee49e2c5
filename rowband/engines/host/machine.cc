#include "rowband/engines/host/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <sstream>

#include "rowband/base/fail.h"

namespace rowband::host {
namespace {

constexpr int kMaxCores = 4096;

struct AffinityMask {
  AffinityMask() : bytes(CPU_ALLOC_SIZE(kMaxCores)), set(CPU_ALLOC(kMaxCores)) {
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) != 0) CPU_SET_S(0, bytes, set);
  }
  ~AffinityMask() { CPU_FREE(set); }
  AffinityMask(const AffinityMask&) = delete;
  AffinityMask& operator=(const AffinityMask&) = delete;
  bool has(int core) const { return CPU_ISSET_S(core, bytes, set); }

  std::size_t bytes;
  cpu_set_t* set;
};

std::int64_t read_meminfo_available() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    std::int64_t kib = 0;
    if (words >> key >> kib && key == "MemAvailable:") return kib * 1024;
  }
  return INT64_MAX;
}

// A number from a cgroup file; INT64_MAX for "max", a missing file, or cgroup version 1.
std::int64_t read_cgroup(const char* name) {
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::ifstream file(fmt::format("/sys/fs/cgroup{}/{}", line.substr(3), name));
    std::int64_t value = 0;
    if (file >> value) return value;
  }
  return INT64_MAX;
}

}  // namespace

int allowed_cores() {
  const AffinityMask mask;
  return std::max(1, CPU_COUNT_S(mask.bytes, mask.set));
}

std::string allowed_cores_text() {
  const AffinityMask mask;
  std::string text;
  for (int core = 0; core < kMaxCores; ++core) {
    if (!mask.has(core)) continue;
    int last = core;
    while (last + 1 < kMaxCores && mask.has(last + 1)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", core);
    if (last > core) text += fmt::format("-{}", last);
    core = last;
  }
  return text;
}

std::int64_t available_memory() {
  const std::int64_t machine = read_meminfo_available();
  const std::int64_t limit = read_cgroup("memory.max"), used = read_cgroup("memory.current");
  if (limit == INT64_MAX || used == INT64_MAX) return machine;
  return std::min(machine, std::max<std::int64_t>(0, limit - used));
}

}  // namespace rowband::host
