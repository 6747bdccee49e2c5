// A checkpoint that opens can be asked for any of its tensors as an fp8 weight or a bias: an answer
// of the right size, or an Error.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "rowband/base/error.h"
#include "rowband/io/checkpoint.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// A file in memory that the checkpoint opens by name; a fresh one each time, since a mapping of the
// last one may not be cut short.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzz", 0)) {
    require(fd_ >= 0);
    require(::write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void read_as_layer(const rowband::Checkpoint& checkpoint, const std::string& name) {
  for (const int world : {1, 2}) {
    try {
      const rowband::Fp8Weight weight =
          rowband::read_weight_slice(checkpoint, name, world - 1, world);
      require(weight.codes.size() == static_cast<std::size_t>(weight.cols * weight.depth));
      require(weight.scales.size() ==
              static_cast<std::size_t>(rowband::scale_blocks(weight.cols) * (weight.depth / 128)));
    } catch (const rowband::Error&) {
      // Most tensors are no weights; what must not happen is anything but an Error.
    }
  }
  try {
    const std::string base = name.ends_with(".bias") ? name.substr(0, name.size() - 5) : name;
    require(rowband::read_bias(checkpoint, base, 2).size() % 2 == 0);
  } catch (const rowband::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const MemoryFile file(data, size);
  try {
    const auto checkpoint = rowband::Checkpoint::open(file.path());
    for (const std::string& name : checkpoint.names()) read_as_layer(checkpoint, name);
  } catch (const rowband::Error& error) {
    require(error.code() == rowband::ErrorCode::kFormat || size == 0);
  }
  return 0;
}
