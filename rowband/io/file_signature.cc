#include "rowband/io/file_signature.h"

#include <algorithm>
#include <string_view>

namespace rowband {

std::string what_it_looks_like(std::span<const std::byte> bytes) {
  struct Signature {
    std::string_view start;
    const char* looks_like;
  };
  static constexpr Signature kSignatures[] = {
      {"PK\x03\x04", "a zip archive (a PyTorch .pt or .bin checkpoint?)"},
      {"\x80\x02", "a Python pickle (a PyTorch .pt or .bin checkpoint?)"},
      {"\x80\x03", "a Python pickle"},
      {"\x80\x04", "a Python pickle"},
      {"\x80\x05", "a Python pickle"},
      {"version https://git-lfs", "a git-lfs pointer, not the file itself (run 'git lfs pull')"},
      {"\x93NUMPY", "a .npy file"},
      {"\x89HDF", "an HDF5 file"},
      {"GGUF", "a GGUF file"},
      {"<", "an HTML or XML page (a failed download?)"},
      {"{", "JSON text without the 8-byte header length"},
  };
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              std::min<std::size_t>(bytes.size(), 64));
  for (const Signature& signature : kSignatures) {
    if (text.starts_with(signature.start)) return signature.looks_like;
  }
  return "";
}

}  // namespace rowband
