// An all-reduce over symmetric memory, for communicators whose ranks share a machine and whose
// caller brings none. Same bits as between threads: fp32 adds in rank order, rounded once.
#pragma once

#include <cstdint>
#include <memory>

#include "rowband/comm/roll_call.h"

namespace rowband::comm {

class SharedAllReduce {
 public:
  static constexpr std::int64_t kChunk = 1 << 20;  // elements that travel at a time
  // What each part of the memory must hold: the roll call, and two chunks.
  static constexpr std::size_t kPartBytes = kRollCallBytes + 2 * kChunk * sizeof(Bf16);

  SharedAllReduce(std::shared_ptr<SymmetricMemory> memory, int rank, int size,
                  RollCall::PeerAlive peer_alive);
  ~SharedAllReduce();
  SharedAllReduce(const SharedAllReduce&) = delete;
  SharedAllReduce& operator=(const SharedAllReduce&) = delete;

  // As Communicator::all_reduce. After kPeerLost or kDeadline it must not be called again; the
  // peers find this rank failed.
  void run(Bf16* data, std::int64_t count, Deadline deadline);

 private:
  void meet(Deadline deadline);
  Bf16* buffer(int rank) const;
  void reduce_own_slice(std::int64_t count) const;
  void copy_out(Bf16* data, std::int64_t count) const;

  const std::shared_ptr<SymmetricMemory> memory_;
  const int rank_;
  const int size_;
  RollCall roll_call_;
  int buffer_parity_ = 0;
  int call_parity_ = 0;
};

}  // namespace rowband::comm
