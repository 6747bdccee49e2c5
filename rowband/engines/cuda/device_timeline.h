// What a traced call recorded on the device, as events of a Timeline on the host's clock.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/trace/timeline.h"

namespace rowband::cuda {

class DeviceTimeline {
 public:
  // Room for the events of one call on the current device.
  explicit DeviceTimeline(std::uint32_t capacity);

  // `a` records here.
  void point(FusedArguments& a) const;

  // Waits for `stream` and adds the call's events. Lanes: a cluster's work, a leg to or from a
  // peer. The device's clock is fitted to the host's by one exchange with it, to a few
  // microseconds. Throws Error(kInternal) when there were more events than room.
  void collect(Timeline& timeline, int rank, cudaStream_t stream);

  // True where a launch returns only when its kernel has ended, as CUDA_LAUNCH_BLOCKING=1 orders.
  bool launches_block(cudaStream_t stream);

 private:
  std::int64_t host_minus_device_ns(cudaStream_t stream);

  std::uint32_t capacity_;
  DeviceMemory events_;
  DeviceMemory count_;
  PinnedMemory exchange_;
};

}  // namespace rowband::cuda
