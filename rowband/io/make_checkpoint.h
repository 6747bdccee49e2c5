// Random checkpoints of a stated shape, for demonstrations, tests and measurements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "rowband/numerics/quantize.h"

namespace rowband {

struct RandomLinear {
  std::string name = "linear";
  std::int64_t cols = 0;   // N, >= 1
  std::int64_t depth = 0;  // K of the whole weight, >= 1
  ScaleFormat scale_format = ScaleFormat::kFp32;
  bool bias = false;
  std::uint64_t seed = 0;
};

// Writes one safetensors file in DeepSeek's names: `<name>.weight`, its scales, and `<name>.bias`
// (BF16) when asked. Weights are bell-shaped with standard deviation 1/sqrt(K), so that unit inputs
// give unit outputs; the bias has standard deviation 1. The same spec gives the same bytes on every
// machine. Throws Error(kInvalidArgument) or Error(kIo).
void make_checkpoint(const std::filesystem::path& destination, const RandomLinear& linear);

}  // namespace rowband
