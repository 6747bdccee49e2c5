// Device memory and streams with owners.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <new>

namespace rowband::cuda {

// Makes `device` current for this thread while it lives.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  // For destructors: where CUDA refuses, which may be for an earlier kernel's failure, it goes on.
  DeviceScope(int device, std::nothrow_t) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;  // none where CUDA did not say
};

struct FreeDevice {
  void operator()(void* p) const { cudaFree(p); }
};
struct FreeHost {
  void operator()(void* p) const { cudaFreeHost(p); }
};
using DeviceMemory = std::unique_ptr<void, FreeDevice>;
using PinnedMemory = std::unique_ptr<void, FreeHost>;

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};

using Stream = std::unique_ptr<CUstream_st, DestroyStream>;

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

Stream make_stream();  // does not wait for the legacy default stream
Event make_event();    // without timing

// Of an allocation on the current device: throws as check does, with the bytes asked for and free.
void check_allocation(cudaError_t result, std::size_t bytes);

// Zero-filled. Throw Error(kOutOfMemory) with the bytes asked for.
DeviceMemory allocate_device(std::size_t bytes);
PinnedMemory allocate_pinned(std::size_t bytes);

}  // namespace rowband::cuda
