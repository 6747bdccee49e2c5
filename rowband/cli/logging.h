// The program's log: spdlog's default logger, on stderr.
#pragma once

#include <string>

namespace rowband::cli {

// `level`: trace, debug, info, warning, error, critical or off. "" takes ROWBAND_LOG, and without
// that "warning". Throws Error(kInvalidArgument) listing the levels.
void start_logging(const std::string& level);

}  // namespace rowband::cli
