#include "rowband/comm/callbacks.h"

#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/comm/memfd_window.h"
#include "rowband/comm/process.h"
#include "rowband/comm/shared_all_reduce.h"
#include "rowband/comm/wording.h"

namespace rowband {
namespace {

using comm::Neighbour;
using comm::PeerProcess;
using comm::ProcessIdentity;
using comm::SharedAllReduce;

// Lets the other ranks of this process see whether a rank's communicator still exists.
class Presence {
 public:
  Presence() {
    const std::lock_guard lock(mutex());
    static std::uint64_t last_number = 0;
    number_ = ++last_number;
    present().insert(number_);
  }
  ~Presence() {
    const std::lock_guard lock(mutex());
    present().erase(number_);
  }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;

  std::uint64_t number() const { return number_; }
  static bool is_present(std::uint64_t number) {
    const std::lock_guard lock(mutex());
    return present().contains(number);
  }

 private:
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::set<std::uint64_t>& present() {
    static std::set<std::uint64_t> instance;
    return instance;
  }
  std::uint64_t number_;
};

// What a rank tells about itself at construction. Trivially copyable.
struct Introduction {
  std::int64_t rank = 0;
  std::int64_t size = 0;
  std::uint64_t presence = 0;
  std::uint64_t brings_all_reduce = 0;
  ProcessIdentity process;
};

class CallbackCommunicator final : public Communicator {
 public:
  explicit CallbackCommunicator(CommunicatorCallbacks callbacks);

  int rank() const override { return callbacks_.rank; }
  int size() const override { return callbacks_.size; }
  std::string_view kind() const override { return callbacks_.kind; }

  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) override;
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) override;
  std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                      Deadline deadline) override;
  bool peer_alive(int rank) const override;

 private:
  void check_introductions(const std::vector<Introduction>& all) const;
  void all_reduce_by_caller(Bf16* data, std::int64_t count, Deadline deadline);
  void all_reduce_over_shared_memory(Bf16* data, std::int64_t count, Deadline deadline);
  template <typename Call>
  void out_of_step_if_it_throws(const Call& call);

  const CommunicatorCallbacks callbacks_;
  const Presence presence_;
  std::vector<std::uint64_t> presences_;
  std::vector<Neighbour> neighbours_;
  std::unique_ptr<SharedAllReduce> shared_all_reduce_;  // made by the first all_reduce
  // Set when a collective ended in the middle: the ranks may be out of step, so nothing later can
  // be trusted.
  std::optional<Error> failure_;
};

CallbackCommunicator::CallbackCommunicator(CommunicatorCallbacks callbacks)
    : callbacks_(std::move(callbacks)) {
  const Introduction own{rank(), size(), presence_.number(), callbacks_.all_reduce ? 1u : 0u,
                         comm::this_process()};
  std::vector<Introduction> all(static_cast<std::size_t>(size()));
  const auto deadline = Deadline::after(kDefaultDeadline);
  all_gather(&own, all.data(), sizeof own, deadline);
  check_introductions(all);
  for (const Introduction& peer : all) {
    presences_.push_back(peer.presence);
    neighbours_.push_back({peer.process, PeerProcess(peer.process)});
  }
  // Nobody returns, and so ends, before all have taken hold of all processes.
  barrier(deadline);
}

// Throws alike on every rank that got the same bytes.
void CallbackCommunicator::check_introductions(const std::vector<Introduction>& all) const {
  for (int peer = 0; peer < size(); ++peer) {
    const Introduction& told = all[static_cast<std::size_t>(peer)];
    if (told.rank != peer || told.size != size()) {
      fail(ErrorCode::kDisagreement,
           "all_gather's slot {} of {} holds what rank {} of {} sent; the callback must put rank "
           "r's "
           "bytes at r * bytes, and all ranks must pass the same size",
           peer, size(), told.rank, told.size);
    }
    if (told.brings_all_reduce != all[0].brings_all_reduce) {
      fail(ErrorCode::kDisagreement,
           "rank {} has an all_reduce callback and rank {} has none; all must have one, or none",
           told.brings_all_reduce ? peer : 0, told.brings_all_reduce ? 0 : peer);
    }
  }
}

template <typename Call>
void CallbackCommunicator::out_of_step_if_it_throws(const Call& call) {
  if (failure_) throw Error(*failure_);
  try {
    call();
  } catch (const Error& error) {
    failure_ = error;
    throw;
  } catch (const std::exception& error) {
    failure_.emplace(ErrorCode::kPoisoned,
                     fmt::format("an earlier callback threw: {}", error.what()));
    throw;
  }
}

void CallbackCommunicator::all_gather(const void* send, void* recv, std::size_t bytes,
                                      Deadline deadline) {
  out_of_step_if_it_throws([&] {
    // Callers' gathers need not cope with empty messages and null buffers.
    if (bytes > 0) callbacks_.all_gather(send, recv, bytes, deadline);
  });
}

void CallbackCommunicator::all_reduce(Bf16* data, std::int64_t count, Deadline deadline) {
  if (callbacks_.all_reduce) {
    all_reduce_by_caller(data, count, deadline);
  } else {
    all_reduce_over_shared_memory(data, count, deadline);
  }
}

void CallbackCommunicator::all_reduce_by_caller(Bf16* data, std::int64_t count, Deadline deadline) {
  const std::int64_t told = comm::told_count(data, count);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size()));
  all_gather(&told, counts.data(), sizeof told, deadline);
  comm::require_same_counts("all_reduce", counts);
  if (count > 0) {
    out_of_step_if_it_throws([&] { callbacks_.all_reduce(data, count, deadline); });
  }
}

void CallbackCommunicator::all_reduce_over_shared_memory(Bf16* data, std::int64_t count,
                                                         Deadline deadline) {
  if (failure_) throw Error(*failure_);
  if (!shared_all_reduce_) {
    shared_all_reduce_ = std::make_unique<SharedAllReduce>(
        allocate_symmetric(SharedAllReduce::kPartBytes, deadline), rank(), size(),
        [this](int peer) { return peer_alive(peer); });
  }
  try {
    shared_all_reduce_->run(data, count, deadline);
  } catch (const Error& error) {
    const bool in_step =
        error.code() == ErrorCode::kDisagreement || error.code() == ErrorCode::kInvalidArgument;
    if (!in_step) failure_ = error;
    throw;
  }
}

std::unique_ptr<SymmetricMemory> CallbackCommunicator::allocate_symmetric(std::size_t bytes,
                                                                          Deadline deadline) {
  return comm::allocate_memfd_window(*this, neighbours_, bytes, deadline);
}

bool CallbackCommunicator::peer_alive(int rank) const {
  comm::require_rank("peer_alive", rank, size());
  const auto& self = neighbours_[static_cast<std::size_t>(this->rank())].identity;
  const Neighbour& peer = neighbours_[static_cast<std::size_t>(rank)];
  if (peer.identity == self) {
    return Presence::is_present(presences_[static_cast<std::size_t>(rank)]);
  }
  return peer.process.alive();
}

}  // namespace

std::unique_ptr<Communicator> make_callback_communicator(CommunicatorCallbacks callbacks) {
  if (!callbacks.all_gather) {
    fail(ErrorCode::kInvalidArgument, "CommunicatorCallbacks::all_gather is empty; it is required");
  }
  if (callbacks.size < 1 || callbacks.rank < 0 || callbacks.rank >= callbacks.size) {
    fail(ErrorCode::kInvalidArgument, "rank {} of {} ranks; the rank must be in [0, size)",
         callbacks.rank, callbacks.size);
  }
  return std::make_unique<CallbackCommunicator>(std::move(callbacks));
}

}  // namespace rowband
