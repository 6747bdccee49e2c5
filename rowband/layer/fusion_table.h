// From how many rows on the fused path is no slower than the base path, as measured.
#pragma once

#include <cstdint>
#include <string_view>

namespace rowband {

// The figure of the measured shape that is nearest to this one. Throws Error(kInternal) for an
// engine without figures.
std::int64_t measured_min_rows(std::string_view engine, int world, std::int64_t cols,
                               std::int64_t depth);

}  // namespace rowband
