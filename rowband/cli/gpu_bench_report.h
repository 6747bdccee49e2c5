// The results of `rowband bench --engine cuda` for people and for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "rowband/cli/gpu_bench.h"

namespace rowband::cli {

// The shapes that the targets speak of.
std::vector<GpuShape> target_shapes();
// M from 1 to 32768: powers of two and some between.
std::vector<GpuShape> sweep_shapes(const std::vector<std::int64_t>& cols,
                                   const std::vector<std::int64_t>& depths);

// Times of every arm of every shape, in both ways of timing.
std::string gpu_times_markdown(const GpuBenchResult& result);
// What has a target, its ratio, and whether it is met; "" when no shape has one.
std::string gpu_targets_markdown(const GpuBenchResult& result);
// How much of the two ceilings the arms reach: the rate of the products, and that of the bytes
// which leave a GPU.
std::string gpu_ceilings_markdown(const GpuBenchResult& result);
// From which M on the fused path is no slower, and where the policy fuses although it is slower.
std::string gpu_thresholds_text(const GpuBenchResult& result);
// How the figures came about.
std::string gpu_bench_notes(const GpuBenchResult& result);
nlohmann::ordered_json gpu_bench_json(const GpuBenchResult& result);

// "" when every result was right.
std::string gpu_bench_failures(const GpuBenchResult& result);

}  // namespace rowband::cli
