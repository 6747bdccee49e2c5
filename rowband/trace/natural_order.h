// The order in which people expect numbered names: "worker 2" before "worker 10".
#pragma once

#include <string_view>

namespace rowband {

// A strict total order: runs of digits compare by value, everything else byte by byte. Names that
// differ in leading zeros only compare as plain text.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace rowband
