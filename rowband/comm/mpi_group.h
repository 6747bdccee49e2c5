// What the ranks of one MPI communicator hold together. Freeing it is collective, so it outlives
// the Communicator that uses it: MpiRuntime frees it when all ranks have let go.
#pragma once

#include <mpi.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "rowband/comm/mpi_window.h"
#include "rowband/comm/process.h"
#include "rowband/comm/roll_call.h"

namespace rowband::comm {

class MpiGroup {
 public:
  // Collective over MPI_COMM_WORLD. Throws Error(kUnavailable) on every rank when the ranks do not
  // share one machine's memory.
  explicit MpiGroup(Deadline deadline);
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool peer_alive(int rank) const;
  RollCall& roll_call() { return *roll_call_; }

  // Raw collectives: any exception leaves the ranks out of step, see MpiRuntime::record_failure.
  // Throw Error(kDisagreement) alike on every rank, and stay in step, when the counts differ.
  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline);
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline);

  // Collective; every rank is known to be here. A window that all ranks got is then kept.
  std::shared_ptr<MpiWindow> make_window(std::size_t bytes) const;
  void keep(std::shared_ptr<MpiWindow> window) { windows_.push_back(std::move(window)); }
  // The windows kept and not yet freed, in the order of their making: the same on all ranks.
  const std::vector<std::shared_ptr<MpiWindow>>& windows() const { return windows_; }
  // Collective. Frees those with freeable[i], which must be the same on all ranks.
  void free_windows(const std::vector<char>& freeable);

  // This rank's communicator ends. Not collective; the peers see it.
  void release();
  bool released() const { return released_; }
  // Collective.
  void free();

 private:
  struct Progress;

  void require_one_machine(Deadline deadline);
  void meet_neighbours(Deadline deadline);
  void require_space_for_roll_call(Deadline deadline);
  // The counts of all ranks agree, and all ranks are here, when this returns.
  void come_with_count(std::string_view call, std::int64_t count, Deadline deadline);
  void gather_piece(const std::byte* send, std::byte* recv, std::size_t piece, std::size_t stride,
                    Deadline deadline);
  void finish(MPI_Request request, std::string_view call, Deadline deadline);
  // Polls `done` without burning the CPU, until it holds, a peer is lost or the deadline passes.
  void poll_until(const std::function<bool()>& done, std::string_view call, Deadline deadline);
  void require_nobody_failed(std::string_view call) const;
  void look_around(Progress& progress, std::string_view call, Deadline deadline);

  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Op sum_ = MPI_OP_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<PeerProcess> peers_;
  std::vector<std::shared_ptr<MpiWindow>> windows_;
  std::shared_ptr<MpiWindow> roll_window_;
  std::optional<RollCall> roll_call_;
  std::uint32_t meeting_ = 0;
  int parity_ = 0;
  std::atomic<bool> released_ = false;
};

}  // namespace rowband::comm
