#include <nccl.h>
#include <nccl_device.h>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/nccl_addresses.h"

namespace rowband::cuda {
namespace {

__global__ void window_addresses(ncclWindow_t window, int ranks, std::byte** addresses) {
  for (int rank = 0; rank < ranks; ++rank) {
    addresses[rank] = static_cast<std::byte*>(ncclGetLsaPointer(window, 0, rank));
  }
}

}  // namespace

void launch_window_addresses(ncclWindow_vidmem* window, int ranks, std::byte** addresses) {
  window_addresses<<<1, 1>>>(window, ranks, addresses);
  check(cudaGetLastError(), "asking NCCL for the addresses of a window");
}

}  // namespace rowband::cuda
