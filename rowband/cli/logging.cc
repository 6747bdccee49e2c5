#include "rowband/cli/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "rowband/base/fail.h"
#include "rowband/layer/environment.h"

namespace rowband::cli {
namespace {

spdlog::level::level_enum parse_level(const std::string& source, const std::string& text) {
  std::string legal;
  for (const auto& name : SPDLOG_LEVEL_NAMES) {
    const std::string level(name.data(), name.size());
    if (level == text) return spdlog::level::from_str(level);
    legal += fmt::format("{}'{}'", legal.empty() ? "" : ", ", level);
  }
  fail(ErrorCode::kInvalidArgument, "{} '{}' is not one of {}", source, text, legal);
}

}  // namespace

void start_logging(const std::string& level) {
  auto chosen = spdlog::level::warn;
  if (!level.empty()) {
    chosen = parse_level("--log-level", level);
  } else if (const auto variable = environment_text("ROWBAND_LOG")) {
    chosen = parse_level("ROWBAND_LOG", *variable);
  }
  auto logger = std::make_shared<spdlog::logger>(
      "rowband", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%^[%l]%$ %v");
  logger->set_level(chosen);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace rowband::cli
