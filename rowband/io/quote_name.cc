#include "rowband/io/quote_name.h"

#include <fmt/format.h>

#include <iterator>

namespace rowband {

std::string quote_name(std::string_view name) {
  constexpr std::size_t kLongest = 160;
  std::string out = "'";
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  out += '\'';
  if (name.size() > kLongest) {
    fmt::format_to(std::back_inserter(out), "... ({} bytes long)", name.size());
  }
  return out;
}

}  // namespace rowband
