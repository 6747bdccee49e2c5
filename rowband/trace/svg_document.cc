#include "rowband/trace/svg_document.h"

#include <expat.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

namespace rowband {
namespace {

struct Reading {
  std::vector<SvgElement> elements;
  std::vector<std::size_t> open;  // indices of the elements around the current place
};

void on_start(void* data, const XML_Char* name, const XML_Char** attributes) {
  auto& reading = *static_cast<Reading*>(data);
  SvgElement element;
  element.name = name;
  for (; *attributes != nullptr; attributes += 2) element.attributes[attributes[0]] = attributes[1];
  if (!reading.open.empty()) element.fill = reading.elements[reading.open.back()].fill;
  if (const auto own = element.attributes.find("fill"); own != element.attributes.end()) {
    element.fill = own->second;
  }
  reading.open.push_back(reading.elements.size());
  reading.elements.push_back(std::move(element));
}

void on_end(void* data, const XML_Char*) { static_cast<Reading*>(data)->open.pop_back(); }

void on_text(void* data, const XML_Char* text, int length) {
  auto& reading = *static_cast<Reading*>(data);
  const std::string_view piece(text, static_cast<std::size_t>(length));
  if (reading.elements[reading.open.back()].name == "title") {
    reading.elements[reading.open[reading.open.size() - 2]].tooltip += piece;
    return;
  }
  for (const std::size_t index : reading.open) reading.elements[index].text += piece;
}

}  // namespace

std::vector<SvgElement> read_svg(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};

  Reading reading;
  const std::unique_ptr<XML_ParserStruct, decltype(&XML_ParserFree)> parser(
      XML_ParserCreate("UTF-8"), XML_ParserFree);
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(parser.get(), on_start, on_end);
  XML_SetCharacterDataHandler(parser.get(), on_text);
  if (XML_Parse(parser.get(), bytes.data(), static_cast<int>(bytes.size()), XML_TRUE) !=
      XML_STATUS_OK) {
    throw std::runtime_error(path.string() + ":" +
                             std::to_string(XML_GetCurrentLineNumber(parser.get())) + ": " +
                             XML_ErrorString(XML_GetErrorCode(parser.get())));
  }
  return std::move(reading.elements);
}

std::vector<SvgBar> bars_of(const std::vector<SvgElement>& elements) {
  std::vector<SvgBar> bars;
  for (const SvgElement& element : elements) {
    if (element.name != "path") continue;
    SvgBar bar;
    if (std::sscanf(element.attributes.at("d").c_str(), "M%lf %lfh%lfv%lf", &bar.x, &bar.y,
                    &bar.width, &bar.height) != 4) {
      continue;  // a grid line
    }
    bar.fill = element.fill;
    bar.tooltip = element.tooltip;
    bars.push_back(bar);
  }
  return bars;
}

}  // namespace rowband
