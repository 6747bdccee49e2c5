#include "rowband/trace/natural_order.h"

#include <algorithm>
#include <cstddef>

namespace rowband {
namespace {

constexpr std::string_view kDigits = "0123456789";

bool starts_with_digit(std::string_view text) {
  return !text.empty() && kDigits.find(text.front()) != std::string_view::npos;
}

// Cuts the run of digits off the front of `text` and returns it without leading zeros, so that of
// two numbers the longer is the larger.
std::string_view take_number(std::string_view& text) {
  const std::size_t length = std::min(text.find_first_not_of(kDigits), text.size());
  std::string_view number = text.substr(0, length);
  text.remove_prefix(length);
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::string_view rest_a = a;
  std::string_view rest_b = b;
  while (!rest_a.empty() && !rest_b.empty()) {
    if (starts_with_digit(rest_a) && starts_with_digit(rest_b)) {
      const std::string_view number_a = take_number(rest_a);
      const std::string_view number_b = take_number(rest_b);
      if (number_a.size() != number_b.size()) return number_a.size() < number_b.size();
      if (number_a != number_b) return number_a < number_b;
    } else {
      if (rest_a.front() != rest_b.front()) {
        return static_cast<unsigned char>(rest_a.front()) <
               static_cast<unsigned char>(rest_b.front());
      }
      rest_a.remove_prefix(1);
      rest_b.remove_prefix(1);
    }
  }
  if (rest_a.empty() != rest_b.empty()) return rest_a.empty();
  return a < b;
}

}  // namespace rowband
