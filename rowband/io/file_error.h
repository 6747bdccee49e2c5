// How this room reports what the operating system refused.
#pragma once

#include <filesystem>
#include <string_view>
#include <system_error>

#include "rowband/base/fail.h"

namespace rowband {

// "weights.safetensors: cannot open: No such file or directory"; `error` is an errno value.
[[noreturn]] inline void fail_io(const std::filesystem::path& path, std::string_view action,
                                 int error) {
  fail(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), action,
       std::generic_category().message(error));
}

}  // namespace rowband
