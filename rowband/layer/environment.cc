#include "rowband/layer/environment.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "rowband/base/fail.h"

namespace rowband {
namespace {

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), is_space));
  text.erase(std::find_if_not(text.rbegin(), text.rend(), is_space).base(), text.end());
  return text;
}

template <typename T>
std::optional<T> number(const char* name, T least, T most) {
  const auto text = environment_text(name);
  if (!text) return std::nullopt;
  T value{};
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  // The negated comparison refuses NaN too.
  if (error != std::errc() || end != text->data() + text->size() ||
      !(value >= least && value <= most)) {
    fail(ErrorCode::kInvalidArgument, "{}='{}': must be a number from {} to {}", name, *text, least,
         most);
  }
  return value;
}

}  // namespace

std::optional<std::string> environment_text(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  std::string text = trimmed(value);
  if (text.empty()) return std::nullopt;
  return text;
}

std::optional<bool> environment_flag(const char* name) {
  const auto text = environment_text(name);
  if (!text) return std::nullopt;
  std::string lower = *text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (std::string_view on : {"1", "true", "on", "yes"}) {
    if (lower == on) return true;
  }
  for (std::string_view off : {"0", "false", "off", "no"}) {
    if (lower == off) return false;
  }
  fail(ErrorCode::kInvalidArgument, "{}='{}': must be 1, true, on or yes, or 0, false, off or no",
       name, *text);
}

std::optional<std::int64_t> environment_integer(const char* name, std::int64_t least,
                                                std::int64_t most) {
  return number<std::int64_t>(name, least, most);
}

std::optional<double> environment_number(const char* name, double least, double most) {
  return number<double>(name, least, most);
}

}  // namespace rowband
