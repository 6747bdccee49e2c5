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

DeviceMemory allocate_device(std::size_t bytes) {
  void* p = nullptr;
  check(cudaMalloc(&p, bytes), fmt::format("allocating {} bytes on the device", bytes));
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
