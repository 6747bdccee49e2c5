// From how many rows on the fused path is no slower than the base path, as measured.
#pragma once

#include <cstdint>
#include <string_view>

#include "rowband/plan/plan.h"

namespace rowband {

// The figure of the measured spec that is nearest to this one: of its transport and wire where
// there is one, then in W, N and K. Throws Error(kInternal) for an engine without figures.
std::int64_t measured_min_rows(std::string_view engine, const PlanSpec& spec);

}  // namespace rowband
