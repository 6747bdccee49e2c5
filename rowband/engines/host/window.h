// The symmetric window of the host engine: the memory all ranks write, and the words they signal
// by.
//
// Rules of the protocol kept here (docs/design.md): 3, signal after data: a flag is stored with
// release order after the bytes it speaks of; 4, flags hold the call's epoch, are never reset and
// lie at the same place for every M; 9, every wait has a deadline and ends early when a peer failed
// or is gone.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rowband/base/error.h"
#include "rowband/comm/communicator.h"
#include "rowband/plan/plan.h"

namespace rowband::host {

enum class Leg { kScatter, kGather };
std::string_view leg_name(Leg leg);

// The epoch of a call: its number folded into the 32 bits of a flag, without 0, which a fresh flag
// holds. A flag is compared for equality: by rule 5 nobody can be a call ahead on a flag that a
// rank still waits for, so neither a wrap nor a flag left over from a call with more chunks is
// mistaken, unless that call was exactly 2^32 - 1 calls ago.
constexpr std::uint32_t epoch_of(std::int64_t call) {
  return static_cast<std::uint32_t>((call - 1) % 0xFFFFFFFFll + 1);
}

// In place of the rows of a call that a rank does not take part in.
inline constexpr std::int64_t kRefused = -1;

class Window {
 public:
  // Collective. Throws Error(kOutOfMemory) on every rank when any cannot allocate; `failure`
  // non-empty makes this rank fail (for tests).
  Window(Communicator& comm, const PlanSpec& spec, const std::string& failure, Deadline deadline);

  const WindowLayout& layout() const { return layout_; }
  int rank() const { return rank_; }
  int world() const { return world_; }

  template <typename T = std::byte>
  T* at(int rank, std::int64_t offset) const {
    return reinterpret_cast<T*>(memory_->part(rank) + offset);
  }
  bool contains(const void* begin, std::int64_t bytes) const;

  // --- what this rank tells its peers
  // -------------------------------------------------------------- `chunk` of the leg is complete
  // in `peer`'s part: a partial of this rank's, or its result.
  void publish(Leg leg, int peer, int chunk, std::int64_t call);
  // This rank has begun a call with `rows` rows, or kRefused it.
  void publish_card(std::int64_t call, std::int64_t rows);
  // This rank's calls are over; every wait of every rank ends with `reason`.
  void report_failure(const std::string& reason);

  // --- what this rank waits for
  // ---------------------------------------------------------------------
  bool arrived(Leg leg, int peer, int chunk, std::int64_t call) const;
  // Throws Error(kDeadline | kPeerLost | kPoisoned).
  void await(Leg leg, int peer, int chunk, std::int64_t call, Deadline deadline);
  // Every peer has begun the same call with the same rows; else Error(kDisagreement) with both
  // numbers.
  void await_cards(std::int64_t call, std::int64_t rows, Deadline deadline);
  // Every peer has begun `call`, or refused it.
  void await_begun(std::int64_t call, Deadline deadline);
  // A peer's reason, "" while none failed.
  std::string failure() const;
  // Ends the waits of all threads of this rank, for good.
  void stop_waiting() {
    stopped_.store(true, std::memory_order_release);
    ring(rank_);
  }

  static std::int64_t control_bytes(int world, int chunks);

 private:
  struct Flag;
  struct Card;
  struct Failure;
  struct Bell;
  Flag& flag(int at_rank, Leg leg, int from, int chunk) const;
  Card& card(int at_rank, int from, std::int64_t call) const;
  Failure& failure_slot(int at_rank, int from) const;
  Bell& bell(int at_rank) const;
  void ring(int at_rank);
  // The rows with which `peer` began the call, or kRefused.
  std::int64_t await_card(int peer, std::int64_t call, Deadline deadline);
  void throw_if_broken(int peer, const std::function<std::string()>& what) const;

  // Returns when ready(), else throws; what() says what was awaited of `peer`.
  template <typename Ready, typename What>
  void wait_for(int peer, Deadline deadline, const Ready& ready, const What& what);

  Communicator& comm_;
  int rank_, world_, chunks_;
  WindowLayout layout_;
  std::unique_ptr<SymmetricMemory> memory_;
  std::atomic<bool> stopped_{false};
};

}  // namespace rowband::host
