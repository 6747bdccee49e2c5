// The copy_engine transport: queues in which each chunk waits for the kernel's local flag, travels
// to the peer by the GPU's copy engine, and is reported to the kernel, which tells the peer.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rowband/base/cuda/device_memory.h"

namespace rowband::cuda {

struct ChunkCopy {
  std::uint32_t* ready;  // local: the kernel sets 1, the queue resets it
  void* to;
  const void* from;
  std::size_t bytes;
  std::uint32_t* copied;  // local: set to 1 once the bytes have arrived, reset by the kernel
};

// Not thread-safe: calls of one rank, in order. Everything is queued, nothing waits on the host,
// and it can be captured into a graph with the caller's stream.
class CopyQueues {
 public:
  // On the current device. Throws Error(kUnavailable) where the driver has no stream waits. For
  // tests: so many bytes from the host go before each chunk, which comes late by them.
  CopyQueues(int count, std::size_t bytes_before);

  // Before the kernel is launched on `caller`: the queues come after what the stream holds.
  void fork(cudaStream_t caller);
  // After the launch, so that the kernel is in no queue behind a wait for it.
  void send(int queue, const ChunkCopy& chunk);
  // What comes next on `caller` comes after all copies.
  void join(cudaStream_t caller);

 private:
  Event begun_;
  std::vector<Stream> queues_;
  std::vector<Event> done_;  // by queue
  const std::size_t bytes_before_;
  PinnedMemory before_from_;
  DeviceMemory before_to_;
};

}  // namespace rowband::cuda
