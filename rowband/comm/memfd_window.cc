#include "rowband/comm/memfd_window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "rowband/base/fail.h"
#include "rowband/comm/mapping.h"
#include "rowband/comm/prefault.h"

namespace rowband::comm {
namespace {

// What a rank tells the others about its part. Trivially copyable.
struct Offer {
  std::uint64_t number = 0;  // of the publication, for ranks of the same process
  std::int64_t descriptor = -1;
  std::uint64_t device = 0;  // what the descriptor must lead to
  std::uint64_t inode = 0;
};

struct OwnPart {
  UniqueFd file;  // none when all ranks are in this process
  std::shared_ptr<Mapping> mapping;
  Offer offer;  // its publication comes later
};

struct stat status_of(const UniqueFd& file) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) {
    fail(ErrorCode::kUnavailable, "fstat of a window's memory file failed: {}",
         std::strerror(errno));
  }
  return status;
}

UniqueFd make_memory_file(std::size_t length) {
  UniqueFd file(memfd_create("rowband-window", MFD_CLOEXEC));
  if (!file) {
    fail(ErrorCode::kUnavailable, "memfd_create failed: {} (errno {})", std::strerror(errno),
         errno);
  }
  if (ftruncate(file.get(), static_cast<off_t>(length)) != 0) {
    fail(ErrorCode::kOutOfMemory, "a memory file of {} bytes cannot be made: {} (errno {})", length,
         std::strerror(errno), errno);
  }
  return file;
}

OwnPart make_own_part(std::size_t bytes, int ranks, bool between_processes) {
  if (!between_processes) return {UniqueFd(), map_anonymous(bytes), Offer()};
  const std::size_t length = whole_pages(bytes);
  // Prefaulting more than there is would call the out-of-memory killer.
  const std::size_t available = available_memory();
  if (length > available / static_cast<std::size_t>(ranks)) {
    fail(ErrorCode::kOutOfMemory, "{} ranks need {} bytes each, and the machine has {} available",
         ranks, length, available);
  }
  OwnPart own{make_memory_file(length), nullptr, Offer()};
  own.mapping = map_shared_file(own.file.get(), length);
  const struct stat status = status_of(own.file);
  own.offer = {0, own.file.get(), status.st_dev, status.st_ino};
  return own;
}

void get_all_pages(const OwnPart& own) {
  const std::size_t length = own.mapping->length();
  if (prefault(own.mapping->address(), length, "the window")) return;
  if (const int error = posix_fallocate(own.file.get(), 0, static_cast<off_t>(length))) {
    fail(ErrorCode::kOutOfMemory, "the {} bytes of the window cannot be had: {} (errno {})", length,
         std::strerror(error), error);
  }
}

std::shared_ptr<Mapping> open_part(const Offer& offer, const Neighbour& neighbour,
                                   bool same_process, std::size_t bytes) {
  if (same_process) {
    auto mapping = PublishedMapping::find(offer.number);
    if (!mapping)
      fail(ErrorCode::kInternal, "a thread of this process withdrew its part too early");
    return mapping;
  }
  const UniqueFd file = neighbour.process.open_descriptor(static_cast<int>(offer.descriptor));
  const struct stat status = status_of(file);
  // The peer may have failed meanwhile and its descriptor's number gone to another file.
  if (status.st_dev != offer.device || status.st_ino != offer.inode ||
      static_cast<std::size_t>(status.st_size) != whole_pages(bytes)) {
    fail(ErrorCode::kUnavailable,
         "descriptor {} of process {} leads to another file than the window that was offered",
         offer.descriptor, neighbour.identity.pid);
  }
  return map_shared_file(file.get(), bytes);
}

// A step that may fail on some ranks: all of them learn it, with the reasons.
template <typename Step>
void agreed(Communicator& comm, Deadline deadline, const Step& step) {
  std::string failure;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    step();
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "window allocation", failure, code, deadline);
}

}  // namespace

std::unique_ptr<SymmetricMemory> allocate_memfd_window(Communicator& comm,
                                                       const std::vector<Neighbour>& neighbours,
                                                       std::size_t bytes, Deadline deadline) {
  const auto ranks = neighbours.size();
  const ProcessIdentity& self = neighbours[static_cast<std::size_t>(comm.rank())].identity;
  const auto in_this_process = [&](std::size_t rank) { return neighbours[rank].identity == self; };
  const bool between_processes =
      !std::all_of(neighbours.begin(), neighbours.end(),
                   [&](const Neighbour& neighbour) { return neighbour.identity == self; });

  agree_on_values(comm, "window allocation", {{"bytes", std::to_string(bytes)}}, deadline);
  OwnPart own;
  agreed(comm, deadline,
         [&] { own = make_own_part(bytes, static_cast<int>(ranks), between_processes); });

  const PublishedMapping published(own.mapping);
  own.offer.number = published.number();
  std::vector<Offer> offers(ranks);
  comm.all_gather(&own.offer, offers.data(), sizeof(Offer), deadline);

  std::vector<std::shared_ptr<Mapping>> parts(ranks);
  agreed(comm, deadline, [&] {
    if (own.file) get_all_pages(own);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      parts[rank] = open_part(offers[rank], neighbours[rank], in_this_process(rank), bytes);
    }
  });
  // Everyone holds everything now: the descriptors and the publication may end here.
  return std::make_unique<MappedParts>(std::move(parts), bytes);
}

}  // namespace rowband::comm
