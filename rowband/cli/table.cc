#include "rowband/cli/table.h"

#include <algorithm>

#include "rowband/base/fail.h"

namespace rowband::cli {
namespace {

std::string padded(const std::string& cell, std::size_t width, Table::Align align) {
  return align == Table::Align::kLeft ? fmt::format("{:<{}}", cell, width)
                                      : fmt::format("{:>{}}", cell, width);
}

void trim_end(std::string& line) { line.erase(line.find_last_not_of(' ') + 1); }

}  // namespace

void Table::add(std::vector<std::string> cells) {
  if (cells.size() != columns_.size()) {
    fail(ErrorCode::kInternal, "a table row of {} cells, there are {} columns", cells.size(),
         columns_.size());
  }
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths() const {
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t width = std::max<std::size_t>(3, columns_[c].title.size());
    for (const auto& row : rows_) width = std::max(width, row[c].size());
    widths.push_back(width);
  }
  return widths;
}

std::string Table::text() const {
  const auto widths = this->widths();
  std::string titles, rule, body;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const std::string gap = c == 0 ? "" : "  ";
    titles += gap + padded(columns_[c].title, widths[c], columns_[c].align);
    rule += gap + std::string(widths[c], '-');
  }
  trim_end(titles);
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      line += (c == 0 ? "" : "  ") + padded(row[c], widths[c], columns_[c].align);
    }
    trim_end(line);
    body += line + "\n";
  }
  return titles + "\n" + rule + "\n" + body;
}

std::string Table::markdown() const {
  const auto widths = this->widths();
  std::string titles = "|", rule = "|", body;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    const bool left = columns_[c].align == Align::kLeft;
    titles += fmt::format(" {} |", padded(columns_[c].title, widths[c], columns_[c].align));
    const std::string dashes(widths[c] - 1, '-');
    rule += left ? fmt::format(" :{} |", dashes) : fmt::format(" {}: |", dashes);
  }
  for (const auto& row : rows_) {
    body += "|";
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      body += fmt::format(" {} |", padded(row[c], widths[c], columns_[c].align));
    }
    body += "\n";
  }
  return titles + "\n" + rule + "\n" + body;
}

}  // namespace rowband::cli
