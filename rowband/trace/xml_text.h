// Text for an XML document.
#pragma once

#include <string>
#include <string_view>

namespace rowband {

// `text` with U+FFFD in place of what no XML document may hold: bytes that are not UTF-8, control
// characters other than tab and newline, U+FFFE and U+FFFF.
std::string xml_characters(std::string_view text);

// xml_characters(text) with & < > " ' as entities: good inside elements and attributes.
std::string xml_text(std::string_view text);

// `text`, or as many of its characters as fit and an ellipsis. At most max_characters code points,
// which must be at least 1; `text` is UTF-8.
std::string shorten(std::string_view text, std::size_t max_characters);

// How many code points valid UTF-8 holds.
std::size_t count_characters(std::string_view text);

}  // namespace rowband
