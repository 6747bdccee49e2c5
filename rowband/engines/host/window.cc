#include "rowband/engines/host/window.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>

#include "rowband/base/fail.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rowband::host {
namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4 && Word::is_always_lock_free, "words are shared between processes");
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t kLine = 64;
constexpr int kSpins = 200;  // a few microseconds, then sleep: ranks may outnumber the cores
constexpr std::chrono::milliseconds kSlice{50};  // between two looks at the deadline and the peers

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Not FUTEX_PRIVATE: the word may be shared between processes.
void futex_wait(Word& word, std::uint32_t seen, std::chrono::nanoseconds limit) {
  const timespec timeout{static_cast<time_t>(limit.count() / 1000000000),
                         static_cast<long>(limit.count() % 1000000000)};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

void futex_wake_all(Word& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

// Control words live in zero-filled shared memory; zero is the valid initial state of each.
struct alignas(kLine) Window::Flag {
  Word epoch;
};

// Two per peer, taken in turn: a peer can be one call ahead, never two (rule 5 and await_cards).
struct alignas(kLine) Window::Card {
  Word epoch;
  std::atomic<std::int64_t> rows;
};

struct alignas(kLine) Window::Failure {
  Word state;  // 1 once text is complete
  char text[508];
};

// Rung after every change that this rank's threads may wait for.
struct alignas(kLine) Window::Bell {
  Word rings;
  Word sleepers;
};

std::string_view leg_name(Leg leg) { return leg == Leg::kScatter ? "scatter" : "gather"; }

std::int64_t Window::control_bytes(int world, int chunks) {
  return static_cast<std::int64_t>(sizeof(Bell)) +
         world * (2 * chunks * static_cast<std::int64_t>(sizeof(Flag)) +
                  2 * static_cast<std::int64_t>(sizeof(Card)) +
                  static_cast<std::int64_t>(sizeof(Failure)));
}

Window::Window(Communicator& comm, const PlanSpec& spec, const std::string& failure,
               Deadline deadline)
    : comm_(comm),
      rank_(comm.rank()),
      world_(comm.size()),
      chunks_(spec.chunks),
      layout_(plan_window(spec, control_bytes(comm.size(), spec.chunks))) {
  agree_on_success(comm, "allocation of the symmetric window", failure, ErrorCode::kOutOfMemory,
                   deadline);
  memory_ = comm.allocate_symmetric(static_cast<std::size_t>(layout_.bytes), deadline);
}

bool Window::contains(const void* begin, std::int64_t bytes) const {
  const auto* first = static_cast<const std::byte*>(begin);
  const std::byte* base = memory_->part(rank_);
  const std::less<> before;
  return before(first, base + layout_.bytes) && before(base, first + bytes);
}

Window::Bell& Window::bell(int at_rank) const { return *at<Bell>(at_rank, layout_.control); }

Window::Flag& Window::flag(int at_rank, Leg leg, int from, int chunk) const {
  Flag* flags = at<Flag>(at_rank, layout_.control + static_cast<std::int64_t>(sizeof(Bell)));
  return flags[((leg == Leg::kGather ? world_ : 0) + from) * chunks_ + chunk];
}

Window::Card& Window::card(int at_rank, int from, std::int64_t call) const {
  Card* cards = reinterpret_cast<Card*>(&flag(at_rank, Leg::kGather, world_, 0));
  return cards[2 * from + static_cast<int>(call % 2)];
}

Window::Failure& Window::failure_slot(int at_rank, int from) const {
  return reinterpret_cast<Failure*>(&card(at_rank, world_, 0))[from];
}

void Window::ring(int at_rank) {
  Bell& b = bell(at_rank);
  b.rings.fetch_add(1);
  // Sequentially consistent with the sleeper's order (announce, read rings, look, sleep): either it
  // is seen here, or it sees this ring and what was stored before it.
  if (b.sleepers.load() != 0) futex_wake_all(b.rings);
}

void Window::publish(Leg leg, int peer, int chunk, std::int64_t call) {
  flag(peer, leg, rank_, chunk).epoch.store(epoch_of(call), std::memory_order_release);
  ring(peer);
}

void Window::publish_card(std::int64_t call, std::int64_t rows) {
  for (int step = 1; step < world_; ++step) {
    const int peer = (rank_ + step) % world_;
    Card& c = card(peer, rank_, call);
    c.rows.store(rows, std::memory_order_relaxed);
    c.epoch.store(epoch_of(call), std::memory_order_release);
    ring(peer);
  }
}

void Window::report_failure(const std::string& reason) {
  for (int peer = 0; peer < world_; ++peer) {
    Failure& slot = failure_slot(peer, rank_);
    if (slot.state.load(std::memory_order_acquire) != 0) continue;  // the first reason stays
    const std::size_t length = std::min(reason.size(), sizeof(slot.text) - 1);
    std::memcpy(slot.text, reason.data(), length);
    slot.text[length] = '\0';
    slot.state.store(1, std::memory_order_release);
    ring(peer);
  }
}

std::string Window::failure() const {
  for (int from = 0; from < world_; ++from) {
    const Failure& slot = failure_slot(rank_, from);
    if (slot.state.load(std::memory_order_acquire) != 0) {
      return from == rank_ ? std::string(slot.text)
                           : fmt::format("rank {} reported: {}", from, slot.text);
    }
  }
  return "";
}

void Window::throw_if_broken(int peer, const std::function<std::string()>& what) const {
  if (stopped_.load(std::memory_order_acquire)) {
    fail(ErrorCode::kPoisoned, "rank {}: another thread of this rank failed, waiting for {}", rank_,
         what());
  }
  if (const std::string reason = failure(); !reason.empty())
    fail(ErrorCode::kPoisoned, "{}", reason);
  if (!comm_.peer_alive(peer)) {
    fail(ErrorCode::kPeerLost, "rank {} is gone; rank {} was waiting for {}", peer, rank_, what());
  }
}

template <typename Ready, typename What>
void Window::wait_for(int peer, Deadline deadline, const Ready& ready, const What& what) {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (ready()) return;
    pause();
  }
  Bell& b = bell(rank_);
  while (true) {
    b.sleepers.fetch_add(1);
    const std::uint32_t seen = b.rings.load();
    if (!ready()) {
      futex_wait(b.rings, seen, std::min<std::chrono::nanoseconds>(kSlice, deadline.left()));
    }
    b.sleepers.fetch_sub(1);
    if (ready()) return;
    try {
      throw_if_broken(peer, what);
    } catch (const Error&) {
      // A peer that did its part and left, or failed later, is no reason to lose this call.
      if (ready()) return;
      throw;
    }
    if (deadline.passed()) {
      fail(ErrorCode::kDeadline, "rank {} waited {:.3g} s for {}", rank_, deadline.budget_seconds(),
           what());
    }
  }
}

bool Window::arrived(Leg leg, int peer, int chunk, std::int64_t call) const {
  return flag(rank_, leg, peer, chunk).epoch.load(std::memory_order_acquire) == epoch_of(call);
}

void Window::await(Leg leg, int peer, int chunk, std::int64_t call, Deadline deadline) {
  wait_for(
      peer, deadline, [&] { return arrived(leg, peer, chunk, call); },
      [&] {
        return fmt::format("chunk {} of rank {} ({} leg, call {})", chunk, peer, leg_name(leg),
                           call);
      });
}

std::int64_t Window::await_card(int peer, std::int64_t call, Deadline deadline) {
  const Card& c = card(rank_, peer, call);
  // Only a peer that refused this call can be beyond it.
  const auto beyond = [&] {
    return static_cast<std::int32_t>(c.epoch.load(std::memory_order_acquire) - epoch_of(call));
  };
  wait_for(
      peer, deadline, [&] { return c.epoch.load(std::memory_order_acquire) != 0 && beyond() >= 0; },
      [&] { return fmt::format("rank {} to begin call {}", peer, call); });
  return beyond() > 0 ? kRefused : c.rows.load(std::memory_order_relaxed);
}

void Window::await_begun(std::int64_t call, Deadline deadline) {
  for (int step = 1; step < world_; ++step) await_card((rank_ + step) % world_, call, deadline);
}

void Window::await_cards(std::int64_t call, std::int64_t rows, Deadline deadline) {
  for (int step = 1; step < world_; ++step) {
    const int peer = (rank_ + step) % world_;
    const std::int64_t theirs = await_card(peer, call, deadline);
    if (theirs == kRefused) {
      fail(ErrorCode::kDisagreement,
           "rank {} refused this call (its own error says why); rank {} passed M={}", peer, rank_,
           rows);
    }
    if (theirs != rows) {
      fail(ErrorCode::kDisagreement,
           "the ranks passed different M to one call: {} on rank {}, {} on rank {}", rows, rank_,
           theirs, peer);
    }
  }
}

}  // namespace rowband::host
