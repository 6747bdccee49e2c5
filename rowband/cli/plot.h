// Line plots of the benchmarks, drawn by the program gnuplot.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace rowband {

struct PlotSeries {
  std::string name;
  std::vector<double> x, y;  // of the same length
};

// One line with points per series, in the order given; y from 0 when nothing is negative. Texts are
// drawn as they are, without markup. `path` is replaced only by a whole picture.
//
// Throws Error: kInvalidArgument when there is nothing to draw, or a value has no place on the axes
// (not finite; x <= 0 with log2_x); kUnavailable when gnuplot is missing or fails; kIo.
void write_plot_svg(const std::filesystem::path& path, const std::string& title,
                    const std::string& x_label, const std::string& y_label,
                    const std::vector<PlotSeries>& series, bool log2_x);

}  // namespace rowband
