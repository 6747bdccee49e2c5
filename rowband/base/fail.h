// fail(code, "format", args...): how the library's own sources throw. Not installed, since it
// brings fmt with it.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "rowband/base/error.h"

namespace rowband {

template <typename... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace rowband
