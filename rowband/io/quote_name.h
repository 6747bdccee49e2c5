// Names from files, made fit for a message.
#pragma once

#include <string>
#include <string_view>

namespace rowband {

// In single quotes, control characters escaped, long ones cut, so that a hostile name can neither
// fill a log nor forge a line of it.
std::string quote_name(std::string_view name);

}  // namespace rowband
