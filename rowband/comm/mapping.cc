#include "rowband/comm/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/comm/wording.h"

namespace rowband::comm {

namespace testing {
thread_local int fail_next_mapping_with = 0;
}  // namespace testing

namespace {

std::shared_ptr<Mapping> map_or_fail(std::size_t bytes, int flags, int fd) {
  const std::size_t length = whole_pages(bytes);
  void* address = MAP_FAILED;
  if (const int injected = std::exchange(testing::fail_next_mapping_with, 0)) {
    errno = injected;
  } else {
    address = mmap(nullptr, length, PROT_READ | PROT_WRITE, flags, fd, 0);
  }
  if (address == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory,
         "mmap of {} bytes failed: {} (errno {}); ask for less, or raise the memory limit", length,
         std::strerror(errno), errno);
  }
  return std::make_shared<Mapping>(static_cast<std::byte*>(address), length);
}

struct Registry {
  std::mutex mutex;
  std::uint64_t last_number = 0;
  std::unordered_map<std::uint64_t, std::shared_ptr<Mapping>> mappings;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

Mapping::~Mapping() { munmap(address_, length_); }

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > std::numeric_limits<std::size_t>::max() - page) {
    fail(ErrorCode::kOutOfMemory, "{} bytes are more than an address space holds", bytes);
  }
  return bytes == 0 ? page : (bytes + page - 1) / page * page;
}

std::shared_ptr<Mapping> map_anonymous(std::size_t bytes) {
  auto mapping = map_or_fail(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  // A hint: without huge pages the memory works as well, only slower.
  (void)madvise(mapping->address(), mapping->length(), MADV_HUGEPAGE);
  return mapping;
}

std::shared_ptr<Mapping> map_shared_file(int fd, std::size_t bytes) {
  return map_or_fail(bytes, MAP_SHARED, fd);
}

PublishedMapping::PublishedMapping(std::shared_ptr<Mapping> mapping) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  number_ = ++all.last_number;
  all.mappings.emplace(number_, std::move(mapping));
}

PublishedMapping::~PublishedMapping() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.mappings.erase(number_);
}

std::shared_ptr<Mapping> PublishedMapping::find(std::uint64_t number) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.mappings.find(number);
  return found == all.mappings.end() ? nullptr : found->second;
}

MappedParts::MappedParts(std::vector<std::shared_ptr<Mapping>> parts, std::size_t bytes)
    : parts_(std::move(parts)), bytes_(bytes) {}

std::byte* MappedParts::part(int rank) const {
  require_rank("part", rank, static_cast<int>(parts_.size()));
  return parts_[static_cast<std::size_t>(rank)]->address();
}

}  // namespace rowband::comm
