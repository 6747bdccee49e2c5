// Reads the device's clock at a moment that the host chose.
#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/ptx_device.cuh"

namespace rowband::cuda {
namespace {

constexpr std::uint64_t kPatienceNs = 1'000'000'000;

__global__ void exchange_clocks(volatile ClockExchange* exchange) {
  const std::uint64_t begin = ptx::clock_ns();
  exchange->running = 1;
  __threadfence_system();
  while (exchange->asked == 0 && ptx::clock_ns() - begin < kPatienceNs) {
  }
  exchange->device_ns = ptx::clock_ns();
}

}  // namespace

void load_clock_exchange() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, exchange_clocks), "loading the exchange of clocks");
}

void launch_clock_exchange(ClockExchange* exchange, cudaStream_t stream) {
  exchange_clocks<<<1, 1, 0, stream>>>(exchange);
  check(cudaGetLastError(), "launching the exchange of clocks");
}

}  // namespace rowband::cuda
