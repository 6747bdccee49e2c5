#include "rowband/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "rowband/io/file_error.h"

namespace rowband {
namespace {

// Unique among the threads and processes of one host; O_EXCL guards against anything else.
std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  return path.parent_path() / fmt::format(".{}.{}-{}.tmp", path.filename().string(), ::getpid(),
                                          counter.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)),
      temporary_(temporary_beside(path_)),
      fd_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!fd_.valid()) {
    const int error = errno;
    fail(ErrorCode::kIo, "{}: cannot create the temporary file {} beside it: {}", path_.string(),
         temporary_.filename().string(), std::generic_category().message(error));
  }
}

AtomicFile::~AtomicFile() {
  if (!committed_ && fd_.valid()) ::unlink(temporary_.c_str());
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0) {
      if (errno == EINTR) continue;
      fail_io(path_, "write", errno);
    }
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void AtomicFile::commit() {
  // Without the flush a crash after the rename could leave a file of the right name and no content.
  if (::fsync(fd_.get()) != 0) fail_io(path_, "flush", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail_io(path_, "rename the finished file into place", errno);
  }
  committed_ = true;
  if (fd_.close() != 0) fail_io(path_, "close", errno);
}

}  // namespace rowband
