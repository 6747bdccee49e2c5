// The JSON header of a safetensors file, taken apart but not yet held against the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rowband {

// As in the reference implementation.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

struct HeaderEntry {
  std::string name;
  std::string dtype_name;
  std::vector<std::int64_t> shape;  // each >= 0
  std::uint64_t begin = 0;          // from the start of the data section
  std::uint64_t end = 0;
};

// Blanks before and after the object are taken as JSON takes them; NUL bytes are refused. Names are
// unique. `file` stands in messages. Throws Error(kFormat).
std::vector<HeaderEntry> parse_safetensors_header(std::span<const std::byte> header,
                                                  const std::string& file);

}  // namespace rowband
