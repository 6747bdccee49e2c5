// Page-aligned zeroed memory, and how the ranks inside one process share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband::comm {

// Ends the mapping when the last owner lets go.
class Mapping {
 public:
  Mapping(std::byte* address, std::size_t length) : address_(address), length_(length) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::byte* address() const { return address_; }
  std::size_t length() const { return length_; }  // whole pages, at least one

 private:
  std::byte* const address_;
  const std::size_t length_;
};

// `bytes` in whole pages, at least one. Throws Error(kOutOfMemory) when that overflows.
std::size_t whole_pages(std::size_t bytes);

// Private to this process. Throws Error(kOutOfMemory).
std::shared_ptr<Mapping> map_anonymous(std::size_t bytes);

// The file's first `bytes`, shared. Throws Error(kOutOfMemory).
std::shared_ptr<Mapping> map_shared_file(int fd, std::size_t bytes);

// The ranks of one process hand mappings to each other by number, through any all_gather: a number
// can be looked up safely even when the rank that published it has failed since. A publication
// lasts as long as its object.
class PublishedMapping {
 public:
  explicit PublishedMapping(std::shared_ptr<Mapping> mapping);
  ~PublishedMapping();
  PublishedMapping(const PublishedMapping&) = delete;
  PublishedMapping& operator=(const PublishedMapping&) = delete;

  std::uint64_t number() const { return number_; }

  // Null when nobody publishes that number (any more).
  static std::shared_ptr<Mapping> find(std::uint64_t number);

 private:
  std::uint64_t number_;
};

// Symmetric memory made of one mapping per rank.
class MappedParts : public SymmetricMemory {
 public:
  MappedParts(std::vector<std::shared_ptr<Mapping>> parts, std::size_t bytes);
  std::byte* part(int rank) const override;
  std::size_t bytes() const override { return bytes_; }

 private:
  const std::vector<std::shared_ptr<Mapping>> parts_;
  const std::size_t bytes_;
};

namespace testing {
// Not 0: the next mapping that this thread makes fails with this errno.
extern thread_local int fail_next_mapping_with;
}  // namespace testing

}  // namespace rowband::comm
