#include "rowband/comm/mpi_runtime.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "rowband/base/fail.h"

namespace rowband::comm {
namespace {

bool mpi_is_initialised() {
  int flag = 0;
  MPI_Initialized(&flag);
  return flag != 0;
}

bool mpi_is_finalised() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

}  // namespace

MpiRuntime& MpiRuntime::instance() {
  static auto* const runtime = new MpiRuntime;
  return *runtime;
}

MpiRuntime::MpiRuntime() {
  if (mpi_is_finalised()) {
    fail(ErrorCode::kUnavailable, "MPI was finalised; make communicators before MPI_Finalize");
  }
  int provided = MPI_THREAD_SINGLE;
  const bool starts_mpi = !mpi_is_initialised();
  if (starts_mpi) {
    mpi_check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  } else {
    mpi_check(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided < MPI_THREAD_SERIALIZED) {
    fail(ErrorCode::kUnavailable,
         "MPI was initialised with thread level {}; ask MPI_Init_thread for MPI_THREAD_SERIALIZED "
         "({}) "
         "or more",
         provided, MPI_THREAD_SERIALIZED);
  }
  // MPI_Finalize, whoever calls it, deletes the attributes of MPI_COMM_SELF first.
  int key = MPI_KEYVAL_INVALID;
  mpi_check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_mpi_finalise, &key, nullptr),
            "MPI_Comm_create_keyval");
  mpi_check(MPI_Comm_set_attr(MPI_COMM_SELF, key, this), "MPI_Comm_set_attr");
  if (starts_mpi) std::atexit(at_exit);
}

int MpiRuntime::on_mpi_finalise(MPI_Comm, int, void* runtime, void*) {
  static_cast<MpiRuntime*>(runtime)->finalise();
  return MPI_SUCCESS;
}

void MpiRuntime::at_exit() {
  if (!mpi_is_finalised() && instance().finalise()) MPI_Finalize();
}

void MpiRuntime::require_usable() {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  if (finalised_) fail(ErrorCode::kUnavailable, "MPI was finalised");
}

void MpiRuntime::record_failure(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = error;
  for (const auto& group : groups_) group->roll_call().set_state(RankState::kFailed);
  if (world_) world_->roll_call().set_state(RankState::kFailed);
}

std::shared_ptr<MpiGroup> MpiRuntime::make_group(Deadline deadline) {
  require_usable();
  try {
    if (!world_) world_ = std::make_shared<MpiGroup>(deadline);
    free_released_groups(deadline);
    auto group = std::make_shared<MpiGroup>(deadline);
    const std::lock_guard lock(mutex_);
    groups_.push_back(group);
    return group;
  } catch (const Error& error) {
    record_failure(error);
    throw;
  }
}

void MpiRuntime::free_released_groups(Deadline deadline) {
  if (groups_.empty()) return;
  const std::size_t count = groups_.size();
  std::vector<char> own;
  for (const auto& group : groups_) own.push_back(group->released() ? 1 : 0);
  std::vector<char> all(count * static_cast<std::size_t>(world_->size()));
  world_->all_gather(own.data(), all.data(), count, deadline);

  std::vector<std::shared_ptr<MpiGroup>> kept;
  for (std::size_t i = 0; i < count; ++i) {
    bool freeable = true;
    for (std::size_t at = i; at < all.size(); at += count) freeable = freeable && all[at] != 0;
    if (freeable) {
      groups_[i]->free();
    } else {
      kept.push_back(groups_[i]);
    }
  }
  const std::lock_guard lock(mutex_);
  groups_ = std::move(kept);
}

// True when everything was freed, so that MPI_Finalize is safe to call. Called by MPI and at exit,
// where nothing may be thrown.
bool MpiRuntime::finalise() {
  if (finalised_) return *finalised_;
  finalised_ = false;
  try {
    finalised_ = free_all();
  } catch (const std::exception& error) {
    spdlog::error("MPI is left without MPI_Finalize: {}", error.what());
  }
  return *finalised_;
}

bool MpiRuntime::free_all() {
  if (failure_) return false;
  if (!world_) return true;
  for (const auto& group : groups_) group->roll_call().set_state(RankState::kFinalising);
  world_->roll_call().set_state(RankState::kFinalising);
  if (!all_ranks_finalise()) return false;
  for (const auto& group : groups_) group->free();
  groups_.clear();
  world_->free();
  world_.reset();
  return true;
}

// As MPI_Finalize, this waits as long as the peers live and have not failed: ending sooner would
// make the launcher end them too. Both states are for good, so all ranks decide alike.
bool MpiRuntime::all_ranks_finalise() {
  RollCall& roll_call = world_->roll_call();
  for (int rank = 0; rank < world_->size(); ++rank) {
    while (roll_call.state(rank) != RankState::kFinalising) {
      if (roll_call.state(rank) == RankState::kFailed || !world_->peer_alive(rank)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return true;
}

}  // namespace rowband::comm
