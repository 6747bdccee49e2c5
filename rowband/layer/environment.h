// The environment variables of the layer, read in one place. The README's table lists them all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace rowband {

// Unset or empty: nullopt (a flag: off). Anything that is not legal throws Error(kInvalidArgument)
// naming the variable, the value and the legal ones.
std::optional<bool> environment_flag(const char* name);  // 0/false/off/no, 1/true/on/yes, any case
std::optional<std::int64_t> environment_integer(const char* name, std::int64_t least,
                                                std::int64_t most);
std::optional<double> environment_number(const char* name, double least, double most);
std::optional<std::string> environment_text(const char* name);

}  // namespace rowband
