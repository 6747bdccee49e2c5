// The copy_engine transport: one queue per peer, in which each chunk waits for the kernel's local
// flag, travels to the peer by the GPU's copy engine, and is followed by the call's epoch, four
// bytes into the peer's flag.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rowband/base/cuda/device_memory.h"

namespace rowband::cuda {

// `rows` rows of `bytes`, `pitch` bytes apart at both ends; one row may have any pitch.
struct CopyBlock {
  void* to;
  const void* from;
  std::size_t bytes;
  std::size_t rows = 1;
  std::size_t pitch = 0;
};

struct ChunkCopy {
  std::uint32_t* ready;  // local: the kernel sets 1, the queue resets it
  std::vector<CopyBlock> blocks;
  const std::uint32_t* epoch;   // local
  std::uint32_t* flag_at_peer;  // gets the epoch once the blocks have arrived
};

// Not thread-safe: calls of one rank, in order. Everything is queued, nothing waits on the host,
// and it can be captured into a graph with the caller's stream.
class CopyQueues {
 public:
  // On the current device. Throws Error(kUnavailable) where the driver has no stream waits.
  explicit CopyQueues(int peers);

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
};

}  // namespace rowband::cuda
