// Safetensors files: an 8-byte little-endian header length, a JSON header, then the data.
// Format: https://github.com/huggingface/safetensors (README, "Format").
//
// Files are mapped, not read; a view stays valid while its file object lives. Every inconsistency
// is an Error(kFormat) naming file and tensor; what the system refuses is Error(kIo) naming the
// file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rowband {

// The dtypes this library reads or writes. Others are carried by name, so that an unused tensor of
// an unknown dtype does not stop a load.
enum class DType { kF32, kBf16, kF8E4m3, kF8E8m0, kOther };

struct TensorInfo {
  std::string name;
  DType dtype = DType::kOther;
  std::string dtype_name;  // as the file spells it: "F8_E4M3"
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;  // into the mapping; may be at an odd address
};

// "[7168, 2048]"
std::string shape_text(std::span<const std::int64_t> shape);

class SafetensorsFile {
 public:
  // Maps the file. The header may be at most 100 MB, as in the reference implementation.
  static std::shared_ptr<const SafetensorsFile> open(const std::filesystem::path& path);
  // The same checks on bytes that the caller keeps alive; `name` stands in for the path in
  // messages.
  static std::shared_ptr<const SafetensorsFile> from_bytes(std::span<const std::byte> bytes,
                                                           std::string name);
  virtual ~SafetensorsFile() = default;

  virtual const std::string& name() const = 0;                        // path or the given name
  virtual const std::vector<TensorInfo>& tensors() const = 0;         // in file order
  virtual const TensorInfo* find(std::string_view tensor) const = 0;  // null when absent
};

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;  // not kOther
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

// Writes to a temporary file beside `path` and renames it, so that a failed write leaves nothing.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors);

}  // namespace rowband
