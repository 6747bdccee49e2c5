#include "rowband/comm/gpu_identity.h"

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"

namespace rowband::comm {

GpuIdentity gpu_identity(int device) {
  cudaDeviceProp properties;
  cuda::check(cudaGetDeviceProperties(&properties, device),
              fmt::format("reading the identity of GPU {}", device));
  return {this_process(), properties.uuid};
}

}  // namespace rowband::comm
