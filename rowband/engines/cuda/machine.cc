#include "rowband/engines/cuda/machine.h"

#include <cuda_runtime.h>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/engine.h"
#include "rowband/engines/cuda/nvml.h"

namespace rowband::cuda {
namespace {

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Gpu visible_gpu(int device) {
  const DeviceScope scope(device);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "reading the device's properties");
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free device memory");
  Gpu gpu;
  gpu.device = device;
  gpu.name = properties.name;
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.bytes = static_cast<std::int64_t>(total);
  gpu.free_bytes = static_cast<std::int64_t>(free);
  gpu.pci_address = fmt::format("{:04x}:{:02x}:{:02x}.0", properties.pciDomainID,
                                properties.pciBusID, properties.pciDeviceID);
  gpu.nvlinks = nvml_active_links(gpu.pci_address);
  return gpu;
}

std::vector<Gpu> visible_gpus() {
  std::vector<Gpu> all;
  for (int device = 0; device < device_count(); ++device) all.push_back(visible_gpu(device));
  return all;
}

std::string why_no_gpus() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess) return count > 0 ? "" : "no device";
  cudaGetLastError();
  return cudaGetErrorString(result);
}

Access access(int from, int to) {
  const auto ask = [&](cudaDeviceP2PAttr attribute) {
    int value = 0;
    check(cudaDeviceGetP2PAttribute(&value, attribute, from, to), "asking for peer access");
    return value != 0;
  };
  return {ask(cudaDevP2PAttrAccessSupported), ask(cudaDevP2PAttrNativeAtomicSupported)};
}

std::string driver_version() {
  int version = 0;
  check(cudaDriverGetVersion(&version), "asking for the driver's version");
  if (version == 0) return "none";
  const std::string cuda = "CUDA " + cuda_version_text(version);
  const std::string driver = nvml_driver_version();
  return driver.empty() ? cuda : driver + ", " + cuda;
}

std::string cuda_runtime_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "asking for the runtime's version");
  return cuda_version_text(version);
}

}  // namespace rowband::cuda
