#include "rowband/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace rowband::cli {
namespace {

constexpr std::int64_t kWidth = 24;
constexpr const char* kWipe = "\r\033[K";

}  // namespace

Progress::Progress(std::int64_t steps, bool shown)
    : steps_(std::max<std::int64_t>(steps, 1)), shown_(shown && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (shown_) std::fputs(kWipe, stderr);
}

void Progress::next(const std::string& what) {
  const std::int64_t done = std::min(begun_++, steps_);
  if (!shown_) return;
  const auto filled = static_cast<std::size_t>(kWidth * done / steps_);
  fmt::print(stderr, "{}[{}{}] {}/{} {}", kWipe, std::string(filled, '#'),
             std::string(static_cast<std::size_t>(kWidth) - filled, '.'), done, steps_, what);
  std::fflush(stderr);
}

}  // namespace rowband::cli
