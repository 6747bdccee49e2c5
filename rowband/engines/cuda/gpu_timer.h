// A stream of one GPU, and how long the work that is queued on it takes there.
#pragma once

#include "rowband/base/cuda/device_memory.h"
#include "rowband/comm/communicator.h"

namespace rowband::cuda {

class GpuTimer {
 public:
  // Collective, since ranks may share the device (choose_queue). Throws Error.
  GpuTimer(Communicator& comm, int device, Deadline deadline);

  void* stream() const { return stream_.get(); }
  // What is queued in between is timed.
  void begin();
  void end();
  // Waits for it.
  double microseconds();
  void synchronize();

 private:
  const int device_;
  Stream stream_;
  Event begin_, end_;
};

}  // namespace rowband::cuda
