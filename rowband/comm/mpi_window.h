// Shared windows of MPI (MPI_Win_allocate_shared), used as plain memory.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband::comm {

// Throws Error(kUnavailable), or Error(kOutOfMemory) for MPI's own codes of that kind, with MPI's
// words.
void mpi_check(int result, std::string_view call);

// Freeing a window is collective, but letting go of its memory is not. So a window only notes that
// this rank let go; MpiGroup frees it at the next collective moment when all ranks have.
class MpiWindow {
 public:
  // Collective, and blocks in MPI without a deadline: every rank must be known to be here.
  MpiWindow(MPI_Comm comm, std::size_t bytes);
  MpiWindow(const MpiWindow&) = delete;
  MpiWindow& operator=(const MpiWindow&) = delete;

  std::byte* part(int rank) const { return parts_.at(static_cast<std::size_t>(rank)); }
  std::size_t bytes() const { return bytes_; }

  void release() { released_ = true; }
  bool released() const { return released_; }
  // Collective, as the constructor.
  void free();

  // Gets and zeroes this rank's pages. Throws Error(kOutOfMemory).
  void prepare_own_part(int rank);

  // Throws Error(kOutOfMemory), with the bytes needed and free, when the file system behind shared
  // windows cannot hold `ranks` parts of `bytes`.
  static void require_space(int ranks, std::size_t bytes);

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> parts_;
  const std::size_t bytes_;
  std::atomic<bool> released_ = false;
};

// The window as its users hold it.
class MpiSymmetricMemory final : public SymmetricMemory {
 public:
  MpiSymmetricMemory(std::shared_ptr<MpiWindow> window, int size)
      : window_(std::move(window)), size_(size) {}
  ~MpiSymmetricMemory() override { window_->release(); }
  std::byte* part(int rank) const override;
  std::size_t bytes() const override { return window_->bytes(); }

 private:
  const std::shared_ptr<MpiWindow> window_;
  const int size_;
};

}  // namespace rowband::comm
