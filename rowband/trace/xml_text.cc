#include "rowband/trace/xml_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace rowband {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kEllipsis = "\xE2\x80\xA6";     // U+2026

bool begins_character(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

// nlohmann's serializer checks UTF-8 and replaces what is not; reading its text back undoes the
// rest.
std::string valid_utf8(std::string_view text) {
  const auto quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

bool is_forbidden(char c) { return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n'; }

}  // namespace

std::string xml_characters(std::string_view text) {
  const std::string valid = valid_utf8(text);
  std::string out;
  out.reserve(valid.size());
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const std::string_view next = std::string_view(valid).substr(i, 3);
    if (next == "\xEF\xBF\xBE" || next == "\xEF\xBF\xBF") {  // U+FFFE, U+FFFF
      out += kReplacement;
      i += 2;
    } else if (is_forbidden(valid[i])) {
      out += kReplacement;
    } else {
      out += valid[i];
    }
  }
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  for (const char c : xml_characters(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_character));
}

std::string shorten(std::string_view text, std::size_t max_characters) {
  if (count_characters(text) <= max_characters) return std::string(text);
  std::size_t kept = 0;
  std::size_t bytes = 0;
  for (; bytes < text.size(); ++bytes) {
    if (begins_character(text[bytes]) && kept++ == max_characters - 1) break;
  }
  return std::string(text.substr(0, bytes)) + std::string(kEllipsis);
}

}  // namespace rowband
