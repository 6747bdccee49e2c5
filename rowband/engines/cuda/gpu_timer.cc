#include "rowband/engines/cuda/gpu_timer.h"

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/turns.h"

namespace rowband::cuda {
namespace {

Event make_timing_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "making an event");
  return Event(event);
}

}  // namespace

GpuTimer::GpuTimer(Communicator& comm, int device, Deadline deadline) : device_(device) {
  const DeviceScope scope(device_);
  stream_ = make_stream();
  begin_ = make_timing_event();
  end_ = make_timing_event();
  choose_queue(comm, device_, stream_.get(), deadline);
}

void GpuTimer::begin() {
  const DeviceScope scope(device_);
  check(cudaEventRecord(begin_.get(), stream_.get()), "recording an event");
}

void GpuTimer::end() {
  const DeviceScope scope(device_);
  check(cudaEventRecord(end_.get(), stream_.get()), "recording an event");
}

double GpuTimer::microseconds() {
  const DeviceScope scope(device_);
  check(cudaEventSynchronize(end_.get()), "waiting for the timed work");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin_.get(), end_.get()), "the time of the work");
  return 1e3 * static_cast<double>(ms);
}

void GpuTimer::synchronize() {
  const DeviceScope scope(device_);
  check(cudaStreamSynchronize(stream_.get()), "waiting for the stream");
}

}  // namespace rowband::cuda
