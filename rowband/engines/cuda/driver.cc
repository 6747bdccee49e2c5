#include "rowband/engines/cuda/driver.h"

#include <cudaTypedefs.h>
#include <cuda_runtime.h>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"

namespace rowband::cuda {

void* find_driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  check(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result),
        fmt::format("asking the driver for {}", name));
  return result == cudaDriverEntryPointSuccess ? found : nullptr;
}

std::string driver_error_text(CUresult result) {
  const auto ask = [&](const char* function) -> std::string {
    const auto text =
        reinterpret_cast<PFN_cuGetErrorString_v6000>(find_driver_function(function, 6000));
    const char* found = nullptr;
    if (text == nullptr || text(result, &found) != CUDA_SUCCESS || found == nullptr) {
      return fmt::format("CUDA driver error {}", static_cast<int>(result));
    }
    return found;
  };
  return fmt::format("{} ({})", ask("cuGetErrorString"), ask("cuGetErrorName"));
}

}  // namespace rowband::cuda
