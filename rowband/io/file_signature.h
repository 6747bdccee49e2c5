// What a file is, by its first bytes, when it is not what was expected.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace rowband {

// "a zip archive (...)" when the first bytes give it away, "" when they do not.
std::string what_it_looks_like(std::span<const std::byte> bytes);

}  // namespace rowband
