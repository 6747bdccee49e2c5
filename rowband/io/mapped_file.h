// A whole regular file, mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace rowband {

// The bytes stay valid while the object lives, also when the file is deleted or replaced by a
// rename. A file that is truncated in place while it is mapped raises SIGBUS on access, as with
// every mapping; the writers of this library replace files and never truncate them.
class MappedFile {
 public:
  // Throws Error(kIo) when the file cannot be opened or is anything but a regular file. Never
  // blocks on a pipe.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace rowband
