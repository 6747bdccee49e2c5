// How long a tile's products take against its way out, and what the kernel's shared memory is
// divided into for it. Arithmetic that needs no device, so that `plan` can print it.
#pragma once

#include <string>

#include "rowband/plan/plan.h"

namespace rowband::cuda {

// Of one cluster of two SMs among those of a whole GPU, with the rates of an H200
// (docs/performance.md): a guide to a choice, no forecast.
struct TileTimes {
  double products_us;  // of a tile
  double leaving_us;   // of a peer's tile by direct stores, when all clusters store at one time
};
TileTimes tile_times(const PlanSpec& spec);

// True where tiles leave about as slowly as they are made: then a group must not wait with its next
// tile until the last one has left, and the operands get a stage less. False where the products are
// the longer part, or nothing leaves by the kernel's own stores.
bool whole_tile_out(const PlanSpec& spec);

// The choice and its figures in words.
std::string pipeline_text(const PlanSpec& spec);

}  // namespace rowband::cuda
