// Writes a safetensors file piece by piece, for tensors that are not all in memory at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "rowband/io/atomic_file.h"

namespace rowband {

struct TensorSpec {
  std::string name;
  std::string dtype_name;  // as in a file: "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;  // of its data
};

// The header is padded with blanks to a multiple of 8, and tensors of wide elements come first, so
// that every tensor lies at a multiple of its element size. The file appears under its name when
// finish() returns, and not at all when that is never reached.
class SafetensorsWriter {
 public:
  // Throws Error(kInvalidArgument) for names that are empty, duplicate, reserved or not UTF-8, for
  // shapes that do not match `bytes`, and for a header above 100 MB.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorSpec> tensors);

  // Bytes of tensor `index` (of the constructor's list) from `offset` on. Every byte of every
  // tensor is written once, in any order.
  void write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes);

  // Throws Error(kInternal) when bytes are missing.
  void finish();

 private:
  struct Place {
    std::string name;
    std::uint64_t offset;  // in the file
    std::uint64_t bytes;
    std::uint64_t written;
  };

  AtomicFile file_;
  std::vector<Place> places_;
};

}  // namespace rowband
