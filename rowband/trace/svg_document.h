// Reads pictures back, for the tests of what draws them.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rowband {

struct SvgElement {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::string text;     // its own and that of the elements in it, but for tooltips
  std::string tooltip;  // its <title>
  std::string fill;     // its own, or else that of the nearest element around it
};

// A bar: the <path> "M x y h width v height h -width z".
struct SvgBar {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
  std::string fill;
  std::string tooltip;
};

// Its elements in the order of their start tags. Throws std::runtime_error, naming the line, when
// the file is not well-formed XML.
std::vector<SvgElement> read_svg(const std::filesystem::path& path);

std::vector<SvgBar> bars_of(const std::vector<SvgElement>& elements);

}  // namespace rowband
