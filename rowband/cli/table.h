// Tables for a terminal and for Markdown.
#pragma once

#include <string>
#include <vector>

namespace rowband::cli {

class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kRight;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // As many cells as there are columns.
  void add(std::vector<std::string> cells);

  std::string text() const;      // padded columns, a rule under the titles
  std::string markdown() const;  // padded as well, so that the source reads like the picture

 private:
  std::vector<std::size_t> widths() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace rowband::cli
