// The GPUs that this process sees, their links, and the versions of what drives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rowband::cuda {

struct Gpu {
  int device = 0;  // CUDA's number
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  std::int64_t bytes = 0;  // of memory
  std::int64_t free_bytes = 0;
  std::string pci_address;
  std::optional<int> nvlinks;  // that are up; none where the management library is not found

  bool runs_the_kernels() const { return major == 9 && minor == 0; }
};

// Throws Error when it can't be asked: another process has it alone, its memory is full, it failed.
Gpu visible_gpu(int device);
// None without a driver. Throws as visible_gpu.
std::vector<Gpu> visible_gpus();
// "" or why there are none, in CUDA's words.
std::string why_no_gpus();

// From a GPU to a peer's memory.
struct Access {
  bool possible = false;  // peer access: NVLink or PCIe
  bool atomics = false;   // native, which NVLink has and PCIe has not
};
Access access(int from, int to);

std::string driver_version();        // "580.159.04, CUDA 13.0"
std::string cuda_runtime_version();  // "13.0"

}  // namespace rowband::cuda
