#include "rowband/comm/threads.h"

#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/comm/bf16_sum.h"
#include "rowband/comm/mapping.h"
#include "rowband/comm/thread_group.h"
#include "rowband/comm/wording.h"

namespace rowband {
namespace {

using comm::Mapping;
using comm::PublishedMapping;
using comm::Slice;
using comm::ThreadGroup;

constexpr int kMaxThreadRanks = 64;

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCommunicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string_view kind() const override { return "threads"; }

  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) override;
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) override;
  std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                      Deadline deadline) override;
  bool peer_alive(int rank) const override;

 private:
  void close_and_throw_unless_counts_agree(std::string_view call, Deadline deadline);
  void reduce_own_slice(std::int64_t count) const;
  void copy_peers_slices(Bf16* data, std::int64_t count) const;

  const std::shared_ptr<ThreadGroup> group_;
  const int rank_;
};

void ThreadCommunicator::all_gather(const void* send, void* recv, std::size_t bytes,
                                    Deadline deadline) {
  group_->open(rank_, {"all_gather", send, static_cast<std::int64_t>(bytes)}, deadline);
  close_and_throw_unless_counts_agree("all_gather", deadline);
  for (int peer = 0; peer < size() && bytes > 0; ++peer) {
    auto* to = static_cast<std::byte*>(recv) + static_cast<std::size_t>(peer) * bytes;
    const void* from = group_->post(peer).data;
    if (to != from) std::memcpy(to, from, bytes);
  }
  group_->close(rank_, deadline);
}

// Each rank reduces one slice of the elements, into its own buffer: no other rank reads that slice
// there before the step, and after it every rank copies the finished slices of the others.
void ThreadCommunicator::all_reduce(Bf16* data, std::int64_t count, Deadline deadline) {
  group_->open(rank_, {"all_reduce", data, comm::told_count(data, count)}, deadline);
  close_and_throw_unless_counts_agree("all_reduce", deadline);
  reduce_own_slice(count);
  group_->step(rank_, deadline);
  copy_peers_slices(data, count);
  group_->close(rank_, deadline);
}

void ThreadCommunicator::reduce_own_slice(std::int64_t count) const {
  const Slice slice = comm::slice_of(rank_, size(), count);
  if (slice.count() == 0 || size() == 1) return;
  std::vector<const Bf16*> sources;
  for (int peer = 0; peer < size(); ++peer) {
    sources.push_back(static_cast<const Bf16*>(group_->post(peer).data) + slice.begin);
  }
  auto* own = const_cast<Bf16*>(sources[static_cast<std::size_t>(rank_)]);
  comm::sum_bf16(sources, slice.count(), own);
}

void ThreadCommunicator::copy_peers_slices(Bf16* data, std::int64_t count) const {
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank_ + step) % size();
    const Slice slice = comm::slice_of(peer, size(), count);
    if (slice.count() == 0) continue;
    const auto* from = static_cast<const Bf16*>(group_->post(peer).data);
    std::memcpy(data + slice.begin, from + slice.begin,
                static_cast<std::size_t>(slice.count()) * sizeof(Bf16));
  }
}

std::unique_ptr<SymmetricMemory> ThreadCommunicator::allocate_symmetric(std::size_t bytes,
                                                                        Deadline deadline) {
  agree_on_values(*this, "window allocation", {{"bytes", std::to_string(bytes)}}, deadline);
  std::shared_ptr<Mapping> own;
  std::string failure;
  try {
    own = comm::map_anonymous(bytes);
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_success(*this, "window allocation", failure, ErrorCode::kOutOfMemory, deadline);

  const PublishedMapping published(own);
  const std::uint64_t number = published.number();
  std::vector<std::uint64_t> numbers(static_cast<std::size_t>(size()));
  all_gather(&number, numbers.data(), sizeof number, deadline);
  std::vector<std::shared_ptr<Mapping>> parts;
  for (const std::uint64_t peers_number : numbers) {
    parts.push_back(PublishedMapping::find(peers_number));
  }
  barrier(deadline);  // publications end after everyone has found them
  for (std::size_t peer = 0; peer < parts.size(); ++peer) {
    if (!parts[peer]) fail(ErrorCode::kInternal, "rank {} withdrew its window too early", peer);
  }
  return std::make_unique<comm::MappedParts>(std::move(parts), bytes);
}

bool ThreadCommunicator::peer_alive(int rank) const {
  comm::require_rank("peer_alive", rank, size());
  return group_->present(rank);
}

// The group stays usable: every rank leaves the collective before it throws.
void ThreadCommunicator::close_and_throw_unless_counts_agree(std::string_view call,
                                                             Deadline deadline) {
  std::vector<std::int64_t> counts;
  for (int peer = 0; peer < size(); ++peer) counts.push_back(group_->post(peer).count);
  try {
    comm::require_same_counts(call, counts);
  } catch (...) {
    group_->close(rank_, deadline);
    throw;
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_communicators(int size) {
  if (size < 1 || size > kMaxThreadRanks) {
    fail(ErrorCode::kInvalidArgument, "a group of {} threads was asked for; 1 to {} can be made",
         size, kMaxThreadRanks);
  }
  const auto group = std::make_shared<ThreadGroup>(size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(std::make_unique<ThreadCommunicator>(group, rank));
  }
  return communicators;
}

void run_ranks(int size, const std::function<void(Communicator&)>& body) {
  auto communicators = make_thread_communicators(size);
  std::mutex mutex;
  std::exception_ptr first_error;
  const auto note_error = [&] {
    const std::lock_guard lock(mutex);
    if (!first_error) first_error = std::current_exception();
  };
  const auto run_rank = [&](std::unique_ptr<Communicator> comm) {
    // The communicator ends after its error is noted, so that the errors which its end causes at
    // the peers come later.
    try {
      body(*comm);
    } catch (...) {
      note_error();
    }
  };
  std::vector<std::jthread> threads;
  try {
    for (auto& comm : communicators) threads.emplace_back(run_rank, std::move(comm));
  } catch (...) {
    note_error();           // no more threads could be started:
    communicators.clear();  // those that run must not wait for the ranks that never will
  }
  threads.clear();
  if (first_error) std::rethrow_exception(first_error);
}

}  // namespace rowband
