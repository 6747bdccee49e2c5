// The results of a sweep for people (a Markdown table, a plot) and for programs (JSON).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rowband/cli/bench_sweep.h"

namespace rowband::cli {

// How the figures came about, in a few lines.
std::string sweep_notes(const SweepFlags& flags);
std::string sweep_markdown(const std::vector<ShapeResult>& results);
nlohmann::ordered_json sweep_json(const SweepFlags& flags, const std::vector<ShapeResult>& results);
// Time over M, a line per arm. Throws as write_plot_svg; wrong results are not drawn.
void plot_sweep(const std::vector<ShapeResult>& results, const std::filesystem::path& path);

// "3 arms were wrong or could not be made", "" when all are right.
std::string sweep_failures(const std::vector<ShapeResult>& results);

}  // namespace rowband::cli
