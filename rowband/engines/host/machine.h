// What this process may use of the machine.
#pragma once

#include <cstdint>
#include <string>

namespace rowband::host {

// Cores in this process's affinity mask (taskset, cpusets and mpirun's binding included); at
// least 1. The mask is never changed: threads inherit what the caller was given.
int allowed_cores();
// The same mask as text, "0-3,8"; ranks with equal masks share those cores.
std::string allowed_cores_text();

// Bytes that can be allocated now without swapping: /proc/meminfo's MemAvailable, and what the
// cgroup leaves where it is less. INT64_MAX where neither can be read.
std::int64_t available_memory();

}  // namespace rowband::host
