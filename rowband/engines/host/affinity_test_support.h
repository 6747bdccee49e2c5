// Test code: running a piece of a test on one core, and seeing which cores threads may use.
#pragma once

#include <sched.h>

#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace rowband::host {

inline cpu_set_t own_mask() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) throw std::runtime_error("no affinity mask");
  return mask;
}

// The cores that this thread may use.
inline std::vector<int> own_cores() {
  const cpu_set_t mask = own_mask();
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

// Runs body on a thread that may use these cores only, as `taskset -c` would run a process.
inline void on_cores(const std::vector<int>& cores, const std::function<void()>& body) {
  std::exception_ptr error;
  std::thread([&] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (int core : cores) CPU_SET(core, &mask);
    try {
      if (sched_setaffinity(0, sizeof mask, &mask) != 0) {
        throw std::runtime_error("sched_setaffinity failed");
      }
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) std::rethrow_exception(error);
}

// "Cpus_allowed_list" of every thread of this process, by thread id.
inline std::map<std::string, std::string> cores_of_threads() {
  std::map<std::string, std::string> all;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    const std::string key = "Cpus_allowed_list:";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(key, 0) == 0) {
        all[task.path().filename()] = line.substr(line.find_first_not_of(" \t", key.size()));
      }
    }
  }
  return all;
}

}  // namespace rowband::host
