// Text for an XML document.
#pragma once

#include <string>
#include <string_view>

namespace rowband {

// `text` with & < > " ' as entities, and U+FFFD in place of what no XML document may hold: bytes
// that are not UTF-8, control characters, U+FFFE and U+FFFF. Good inside elements and attributes.
std::string xml_text(std::string_view text);

// `text`, or as many of its characters as fit and an ellipsis. At most max_characters code points,
// which must be at least 1; `text` is UTF-8.
std::string shorten(std::string_view text, std::size_t max_characters);

// How many code points valid UTF-8 holds.
std::size_t count_characters(std::string_view text);

}  // namespace rowband
