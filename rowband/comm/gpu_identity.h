// Which GPU of which machine a rank is on, whatever the GPU's number is in its process. Only in
// builds with CUDA.
#pragma once

#include <cuda_runtime.h>

#include <cstring>

#include "rowband/comm/process.h"

namespace rowband::comm {

// Trivially copyable, so that it travels through any all_gather.
struct GpuIdentity {
  ProcessIdentity process;  // of the rank
  cudaUUID_t uuid = {};

  bool same_gpu(const GpuIdentity& other) const {
    return process.same_machine(other.process) && std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
  }
};

// Of this process and `device`, by its CUDA number here. Throws Error(kUnavailable).
GpuIdentity gpu_identity(int device);

}  // namespace rowband::comm
