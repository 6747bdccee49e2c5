#include "rowband/comm/mpi_group.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/bf16_sum.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {
namespace {

using Clock = std::chrono::steady_clock;

// MPI counts are ints, and an MPI library stages a whole message: both bound what travels at a
// time.
constexpr std::size_t kPieceBytes = 16u << 20;
constexpr std::int64_t kPieceElements = kPieceBytes / sizeof(Bf16);

// A wait yields for the time that short collectives take, then sleeps between polls.
constexpr std::chrono::milliseconds kYieldFor{2};
constexpr std::chrono::microseconds kSleep{100};
constexpr std::chrono::milliseconds kLookAround{10};
// What a peer sent before it ended still arrives; it is lost when the collective does not end by
// then.
constexpr std::chrono::seconds kGraceAfterDeath{1};

// MPI reduces pairs: each of its steps adds in fp32 and rounds to bf16.
void add_bf16(void* in, void* in_out, int* count, MPI_Datatype*) {
  auto* sum = static_cast<Bf16*>(in_out);
  const Bf16* const sources[] = {static_cast<const Bf16*>(in), sum};
  sum_bf16(sources, *count, sum);
}

}  // namespace

// How a wait is going.
struct MpiGroup::Progress {
  Clock::time_point started = Clock::now();
  Clock::time_point next_look = started + kLookAround;
  std::optional<Clock::time_point> death_seen;
};

MpiGroup::MpiGroup(Deadline deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
  finish(request, "MPI_Comm_idup", deadline);
  mpi_check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  mpi_check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  mpi_check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  mpi_check(MPI_Op_create(add_bf16, /*commute=*/1, &sum_), "MPI_Op_create");
  require_one_machine(deadline);
  meet_neighbours(deadline);
}

void MpiGroup::require_one_machine(Deadline deadline) {
  MPI_Comm neighbours = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &neighbours),
            "MPI_Comm_split_type");
  int own = 0;
  mpi_check(MPI_Comm_size(neighbours, &own), "MPI_Comm_size");
  mpi_check(MPI_Comm_free(&neighbours), "MPI_Comm_free");
  std::vector<int> sharing(static_cast<std::size_t>(size_));
  gather_piece(reinterpret_cast<const std::byte*>(&own),
               reinterpret_cast<std::byte*>(sharing.data()), sizeof own, sizeof own, deadline);
  for (int rank = 0; rank < size_; ++rank) {
    const int with = sharing[static_cast<std::size_t>(rank)];
    if (with == size_) continue;
    fail(ErrorCode::kUnavailable,
         "rank {} shares memory with {} of the {} ranks; all must run on one machine", rank, with,
         size_);
  }
}

void MpiGroup::meet_neighbours(Deadline deadline) {
  const ProcessIdentity own = this_process();
  std::vector<ProcessIdentity> all(static_cast<std::size_t>(size_));
  gather_piece(reinterpret_cast<const std::byte*>(&own), reinterpret_cast<std::byte*>(all.data()),
               sizeof own, sizeof own, deadline);
  for (const ProcessIdentity& identity : all) peers_.emplace_back(identity);

  require_space_for_roll_call(deadline);
  roll_window_ = std::make_shared<MpiWindow>(comm_, kRollCallBytes);
  roll_window_->prepare_own_part(rank_);
  // All have taken hold of all processes and zeroed their slots before anyone goes on, or ends.
  const char here = 1;
  std::vector<char> everyone(static_cast<std::size_t>(size_));
  gather_piece(reinterpret_cast<const std::byte*>(&here),
               reinterpret_cast<std::byte*>(everyone.data()), 1, 1, deadline);
  roll_call_.emplace(std::make_shared<MpiSymmetricMemory>(roll_window_, size_), rank_, size_,
                     [this](int peer) { return peer_alive(peer); });
}

// The allocation itself would hang if only some ranks entered it.
void MpiGroup::require_space_for_roll_call(Deadline deadline) {
  std::optional<Error> failure;
  try {
    MpiWindow::require_space(size_, kRollCallBytes);
  } catch (const Error& error) {
    failure = error;
  }
  const char failed = failure ? 1 : 0;
  std::vector<char> all(static_cast<std::size_t>(size_));
  gather_piece(reinterpret_cast<const std::byte*>(&failed),
               reinterpret_cast<std::byte*>(all.data()), 1, 1, deadline);
  if (failure) throw Error(*failure);
  const auto first = std::find(all.begin(), all.end(), char{1});
  if (first != all.end()) {
    fail(ErrorCode::kOutOfMemory, "rank {} found no space for a shared window of {} bytes",
         first - all.begin(), kRollCallBytes);
  }
}

bool MpiGroup::peer_alive(int rank) const {
  require_rank("peer_alive", rank, size_);
  return peers_[static_cast<std::size_t>(rank)].alive();
}

// The counts travel by the roll call: in shared memory, and before MPI could choke on them.
void MpiGroup::come_with_count(std::string_view call, std::int64_t count, Deadline deadline) {
  roll_call_->tell_count(parity_, count);
  meeting_ = roll_call_->come();
  const auto all_here = [this] {
    // A peer may still need this rank's progress for the collective before.
    int flag = 0;
    mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &flag, MPI_STATUS_IGNORE),
              "MPI_Iprobe");
    for (int rank = 0; rank < size_; ++rank) {
      if (!roll_call_->has_come(rank, meeting_)) return false;
    }
    return true;
  };
  poll_until(all_here, call, deadline);
  // The two words take turns: this one is written again after the next meeting, to which a rank
  // comes only when it has read all counts here.
  const auto counts = roll_call_->counts(parity_);
  parity_ ^= 1;
  require_same_counts(call, counts);
}

void MpiGroup::all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
  come_with_count("all_gather", static_cast<std::int64_t>(bytes), deadline);
  const auto* from = static_cast<const std::byte*>(send);
  auto* to = static_cast<std::byte*>(recv);
  for (std::size_t done = 0; done < bytes; done += kPieceBytes) {
    gather_piece(from + done, to + done, std::min(kPieceBytes, bytes - done), bytes, deadline);
  }
}

// Rank r's piece lands at r * stride.
void MpiGroup::gather_piece(const std::byte* send, std::byte* recv, std::size_t piece,
                            std::size_t stride, Deadline deadline) {
  MPI_Datatype dense = MPI_DATATYPE_NULL;
  MPI_Datatype strided = MPI_DATATYPE_NULL;
  mpi_check(MPI_Type_contiguous(static_cast<int>(piece), MPI_BYTE, &dense), "MPI_Type_contiguous");
  mpi_check(MPI_Type_create_resized(dense, 0, static_cast<MPI_Aint>(stride), &strided),
            "MPI_Type_create_resized");
  mpi_check(MPI_Type_commit(&strided), "MPI_Type_commit");
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(
      MPI_Iallgather(send, static_cast<int>(piece), MPI_BYTE, recv, 1, strided, comm_, &request),
      "MPI_Iallgather");
  finish(request, "all_gather", deadline);
  mpi_check(MPI_Type_free(&strided), "MPI_Type_free");
  mpi_check(MPI_Type_free(&dense), "MPI_Type_free");
}

void MpiGroup::all_reduce(Bf16* data, std::int64_t count, Deadline deadline) {
  come_with_count("all_reduce", told_count(data, count), deadline);
  for (std::int64_t done = 0; done < count; done += kPieceElements) {
    const auto piece = static_cast<int>(std::min(kPieceElements, count - done));
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_check(MPI_Iallreduce(MPI_IN_PLACE, data + done, piece, MPI_UINT16_T, sum_, comm_, &request),
              "MPI_Iallreduce");
    finish(request, "all_reduce", deadline);
  }
}

void MpiGroup::finish(MPI_Request request, std::string_view call, Deadline deadline) {
  const auto done = [&request] {
    int flag = 0;
    mpi_check(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), "MPI_Test");
    return flag != 0;
  };
  poll_until(done, call, deadline);
}

// A rank that gave up in this collective, even after it had come, takes its buffers away, and MPI
// may have read them since: no result can be trusted. One that gave up in a later collective had
// ended this one in good order.
void MpiGroup::require_nobody_failed(std::string_view call) const {
  if (!roll_call_) return;  // in the constructor
  std::vector<int> failed;
  for (const int rank : roll_call_->ranks_in(RankState::kFailed)) {
    if (!roll_call_->has_come(rank, meeting_ + 1)) failed.push_back(rank);
  }
  if (failed.empty()) return;
  const auto missing = roll_call_->missing(meeting_);
  fail(ErrorCode::kPeerLost, "{}: {} gone (failed and gave up){}", call, rank_list(failed),
       missing.empty() ? "" : fmt::format(" while {} had not come", rank_list(missing)));
}

void MpiGroup::poll_until(const std::function<bool()>& done, std::string_view call,
                          Deadline deadline) {
  Progress progress;
  while (!done()) {
    const auto now = Clock::now();
    if (now >= progress.next_look || deadline.passed()) {
      progress.next_look = now + kLookAround;
      look_around(progress, call, deadline);
    }
    if (now - progress.started < kYieldFor) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  require_nobody_failed(call);
}

void MpiGroup::look_around(Progress& progress, std::string_view call, Deadline deadline) {
  if (!roll_call_) {  // in the constructor
    if (!deadline.passed()) return;
    fail(ErrorCode::kDeadline, "{}: {:.3g} s passed while the ranks made their communicator", call,
         deadline.budget_seconds());
  }
  roll_call_->require_all_can_come(meeting_, call);
  require_nobody_failed(call);
  std::vector<int> dead;
  for (int rank = 0; rank < size_; ++rank) {
    const bool failed = roll_call_->state(rank) == RankState::kFailed;
    if (failed || !peer_alive(rank)) dead.push_back(rank);
  }
  if (!dead.empty()) {
    const auto now = Clock::now();
    if (!progress.death_seen) progress.death_seen = now;
    if (now - *progress.death_seen >= kGraceAfterDeath) {
      fail(ErrorCode::kPeerLost, "{}: {} gone (ended in the middle)", call, rank_list(dead));
    }
  }
  if (deadline.passed()) roll_call_->throw_deadline(meeting_, call, deadline);
}

std::shared_ptr<MpiWindow> MpiGroup::make_window(std::size_t bytes) const {
  return std::make_shared<MpiWindow>(comm_, bytes);
}

void MpiGroup::free_windows(const std::vector<char>& freeable) {
  std::vector<std::shared_ptr<MpiWindow>> kept;
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    if (freeable[i]) {
      windows_[i]->free();
    } else {
      kept.push_back(windows_[i]);
    }
  }
  windows_ = std::move(kept);
}

void MpiGroup::release() {
  if (roll_call_ && roll_call_->state(rank_) == RankState::kWorking) {
    roll_call_->set_state(RankState::kEnded);
  }
  released_ = true;
}

void MpiGroup::free() {
  free_windows(std::vector<char>(windows_.size(), 1));
  roll_call_.reset();
  roll_window_->free();
  mpi_check(MPI_Op_free(&sum_), "MPI_Op_free");
  mpi_check(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

}  // namespace rowband::comm
