// Which ranks have come, over shared memory: a slot per rank with the number of meetings that it
// came to, and whether it still takes part. Works between threads and between processes; waits
// sleep on a futex.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/base/deadline.h"
#include "rowband/comm/communicator.h"

namespace rowband::comm {

enum class RankState : std::uint32_t {
  kWorking = 0,  // what zeroed memory says
  kEnded,        // its communicator was destroyed in good order
  kFinalising,   // it will call nothing any more
  kFailed,       // it gave up: a deadline passed, or a peer was lost
};

// Offset 0 of every rank's part.
struct RankSlot {
  std::uint32_t meetings;  // compared so that it may wrap
  std::uint32_t state;
  std::int64_t counts[2];  // of the collective in progress, by its parity
};
inline constexpr std::size_t kRollCallBytes = 4096;

class RollCall {
 public:
  using PeerAlive = std::function<bool(int rank)>;

  // Uses the first kRollCallBytes of each part.
  RollCall(std::shared_ptr<SymmetricMemory> memory, int rank, int size, PeerAlive peer_alive);

  // Tells the others that this rank has come to its next meeting; returns the meeting's number.
  std::uint32_t come();
  // Until all have come to `meeting`. Throws Error(kPeerLost) or Error(kDeadline) naming the ranks
  // that have not and cannot, or had not.
  void wait_for_all(std::uint32_t meeting, std::string_view call, Deadline deadline);

  // One look. Throws Error(kPeerLost) when a rank that has not come to `meeting` never will.
  void require_all_can_come(std::uint32_t meeting, std::string_view call) const;
  // Error(kDeadline) that names the ranks which have not come to `meeting`.
  [[noreturn]] void throw_deadline(std::uint32_t meeting, std::string_view call,
                                   Deadline deadline) const;
  std::vector<int> ranks_in(RankState state) const;
  // The ranks that have not come to `meeting`.
  std::vector<int> missing(std::uint32_t meeting) const;

  void set_state(RankState state);
  RankState state(int rank) const;
  bool has_come(int rank, std::uint32_t meeting) const;
  void tell_count(int parity, std::int64_t count);
  // Of all ranks. To be read after a meeting, and overwritten only after the next one.
  std::vector<std::int64_t> counts(int parity) const;

 private:
  RankSlot& slot(int rank) const;

  const std::shared_ptr<SymmetricMemory> memory_;
  const int rank_;
  const int size_;
  const PeerAlive peer_alive_;
};

}  // namespace rowband::comm
