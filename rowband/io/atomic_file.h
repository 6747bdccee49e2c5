// A file that appears under its name complete or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "rowband/io/file_descriptor.h"

namespace rowband {

// Bytes go to a temporary file in the same directory, which commit() renames to `path`. Without a
// commit the temporary file is removed. All failures are Error(kIo) naming the file.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  // Flushes to the device, then renames. Call once, last.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  FileDescriptor fd_;
  bool committed_ = false;
};

}  // namespace rowband
