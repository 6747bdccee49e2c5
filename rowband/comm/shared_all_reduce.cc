#include "rowband/comm/shared_all_reduce.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "rowband/comm/bf16_sum.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {

SharedAllReduce::SharedAllReduce(std::shared_ptr<SymmetricMemory> memory, int rank, int size,
                                 RollCall::PeerAlive peer_alive)
    : memory_(memory),
      rank_(rank),
      size_(size),
      roll_call_(std::move(memory), rank, size, std::move(peer_alive)) {}

SharedAllReduce::~SharedAllReduce() {
  if (roll_call_.state(rank_) == RankState::kWorking) roll_call_.set_state(RankState::kEnded);
}

// Per chunk: copy in, meet, reduce the own slice in the own buffer (no peer reads it there yet),
// meet, copy out. Two buffers take turns, so there is no third meeting: a buffer is written again
// two chunks later, after a meeting to which every peer came only when it had copied this chunk
// out. The two words for the counts take turns by call in the same way.
void SharedAllReduce::run(Bf16* data, std::int64_t count, Deadline deadline) {
  const std::int64_t told = told_count(data, count);
  roll_call_.tell_count(call_parity_, told);
  std::int64_t done = 0;
  bool first = true;
  do {
    const std::int64_t chunk = std::clamp<std::int64_t>(told - done, 0, kChunk);
    if (chunk > 0) {
      std::memcpy(buffer(rank_), data + done, static_cast<std::size_t>(chunk) * sizeof(Bf16));
    }
    meet(deadline);
    if (std::exchange(first, false)) {
      const auto counts = roll_call_.counts(call_parity_);
      call_parity_ ^= 1;
      require_same_counts("all_reduce", counts);
    }
    if (chunk > 0) {
      reduce_own_slice(chunk);
      meet(deadline);
      copy_out(data + done, chunk);
    }
    buffer_parity_ ^= 1;
    done += chunk;
  } while (done < told);
}

void SharedAllReduce::meet(Deadline deadline) {
  try {
    roll_call_.wait_for_all(roll_call_.come(), "all_reduce", deadline);
  } catch (...) {
    roll_call_.set_state(RankState::kFailed);
    throw;
  }
}

Bf16* SharedAllReduce::buffer(int rank) const {
  std::byte* chunks = memory_->part(rank) + kRollCallBytes;
  return reinterpret_cast<Bf16*>(chunks) + buffer_parity_ * kChunk;
}

void SharedAllReduce::reduce_own_slice(std::int64_t count) const {
  const Slice slice = slice_of(rank_, size_, count);
  std::vector<const Bf16*> sources;
  for (int peer = 0; peer < size_; ++peer) sources.push_back(buffer(peer) + slice.begin);
  sum_bf16(sources, slice.count(), buffer(rank_) + slice.begin);
}

void SharedAllReduce::copy_out(Bf16* data, std::int64_t count) const {
  for (int step = 0; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const Slice slice = slice_of(peer, size_, count);
    if (slice.count() == 0) continue;
    std::memcpy(data + slice.begin, buffer(peer) + slice.begin,
                static_cast<std::size_t>(slice.count()) * sizeof(Bf16));
  }
}

}  // namespace rowband::comm
