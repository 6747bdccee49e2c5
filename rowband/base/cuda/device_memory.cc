#include "rowband/base/cuda/device_memory.h"

#include <cstring>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"

namespace rowband::cuda {

DeviceScope::DeviceScope(int device) {
  check(cudaGetDevice(&before_), "asking for the current device");
  check(cudaSetDevice(device), fmt::format("choosing device {}", device));
}

DeviceScope::DeviceScope(int device, std::nothrow_t) noexcept {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
  if (cudaSetDevice(device) != cudaSuccess) cudaGetLastError();
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return Event(event);
}

void check_allocation(cudaError_t result, std::size_t bytes) {
  if (result == cudaSuccess) return;
  std::size_t free = 0, total = 0;
  const bool known = cudaMemGetInfo(&free, &total) == cudaSuccess;
  check(result, fmt::format("allocating {} bytes on the device{}", bytes,
                            known ? fmt::format(", where {} are free", free) : ""));
}

DeviceMemory allocate_device(std::size_t bytes) {
  void* p = nullptr;
  check_allocation(cudaMalloc(&p, bytes), bytes);
  DeviceMemory memory(p);
  check(cudaMemset(p, 0, bytes), "clearing device memory");
  return memory;
}

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* p = nullptr;
  check(cudaHostAlloc(&p, bytes, cudaHostAllocMapped),
        fmt::format("allocating {} bytes of pinned host memory", bytes));
  std::memset(p, 0, bytes);
  return PinnedMemory(p);
}

}  // namespace rowband::cuda
