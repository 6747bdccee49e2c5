#include "rowband/comm/mpi_window.h"

#include <sys/statvfs.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "rowband/base/fail.h"
#include "rowband/comm/mapping.h"
#include "rowband/comm/prefault.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {
namespace {

constexpr std::size_t kAlignment = 4096;
// Where Open MPI and MPICH keep shared windows on Linux.
constexpr const char* kSharedMemoryDirectory = "/dev/shm";

// The library's own bookkeeping at the start of a part (264 bytes in Open MPI 4) leaves parts
// unaligned; one page more makes room to align them.
std::size_t padded(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() / 2) {
    fail(ErrorCode::kOutOfMemory, "{} bytes are more than an address space holds", bytes);
  }
  return whole_pages(bytes) + kAlignment;
}

// Mappings start on pages, so every process aligns a part to the same offset.
std::byte* aligned(void* address) {
  const auto number = reinterpret_cast<std::uintptr_t>(address);
  return static_cast<std::byte*>(address) + (kAlignment - number % kAlignment) % kAlignment;
}

}  // namespace

void mpi_check(int result, std::string_view call) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
  int length = 0;
  if (MPI_Error_string(result, text.data(), &length) != MPI_SUCCESS) length = 0;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(result, &error_class);
  const bool memory = error_class == MPI_ERR_NO_MEM || error_class == MPI_ERR_NO_SPACE ||
                      error_class == MPI_ERR_RMA_SHARED;
  fail(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable, "{} failed: {} (code {})", call,
       std::string_view(text.data(), static_cast<std::size_t>(length)), result);
}

MpiWindow::MpiWindow(MPI_Comm comm, std::size_t bytes) : bytes_(bytes) {
  MPI_Info info = MPI_INFO_NULL;
  mpi_check(MPI_Info_create(&info), "MPI_Info_create");
  mpi_check(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");
  void* own = nullptr;
  const int result =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(padded(bytes)), 1, info, comm, &own, &window_);
  MPI_Info_free(&info);
  mpi_check(result, fmt::format("MPI_Win_allocate_shared of {} bytes", padded(bytes)));

  int size = 0;
  mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  for (int rank = 0; rank < size; ++rank) {
    MPI_Aint part_bytes = 0;
    int unit = 0;
    void* address = nullptr;
    mpi_check(MPI_Win_shared_query(window_, rank, &part_bytes, &unit, &address),
              "MPI_Win_shared_query");
    parts_.push_back(aligned(address));
  }
}

void MpiWindow::free() {
  if (window_ != MPI_WIN_NULL) mpi_check(MPI_Win_free(&window_), "MPI_Win_free");
}

void MpiWindow::prepare_own_part(int rank) {
  // Where the kernel cannot promise the pages (before 5.14), the check of the space came first; a
  // job that fills it in between can still kill this one there.
  prefault(part(rank), whole_pages(bytes_), "the shared window");
  std::memset(part(rank), 0, bytes_);
}

void MpiWindow::require_space(int ranks, std::size_t bytes) {
  const std::size_t part = padded(bytes);
  if (const int injected = std::exchange(testing::fail_next_mapping_with, 0)) {
    fail(ErrorCode::kOutOfMemory, "a shared window of {} bytes: {}", whole_pages(bytes),
         std::strerror(injected));
  }
  struct statvfs status = {};
  if (statvfs(kSharedMemoryDirectory, &status) != 0) {
    fail(ErrorCode::kUnavailable, "{}, where MPI keeps shared windows, cannot be looked at: {}",
         kSharedMemoryDirectory, std::strerror(errno));
  }
  const std::size_t free = static_cast<std::size_t>(status.f_bavail) * status.f_frsize;
  // The share of one rank, so that nothing overflows.
  if (part > free / static_cast<std::size_t>(ranks)) {
    fail(ErrorCode::kOutOfMemory,
         "{} ranks need {} bytes each in {}, which has {} free; enlarge it (docker run --shm-size, "
         "mount -o remount,size=) or remove what ended jobs left there",
         ranks, part, kSharedMemoryDirectory, free);
  }
}

std::byte* MpiSymmetricMemory::part(int rank) const {
  require_rank("part", rank, size_);
  return window_->part(rank);
}

}  // namespace rowband::comm
