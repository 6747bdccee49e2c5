#include "rowband/io/checkpoint_json.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "rowband/base/fail.h"
#include "rowband/io/file_signature.h"
#include "rowband/io/mapped_file.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

using nlohmann::json;

// Refuses duplicate keys, of which a plain parse would silently keep the last.
class DuplicateKeyCheck {
 public:
  explicit DuplicateKeyCheck(const std::string& file) : file_(file) {}

  bool operator()(int, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event == json::parse_event_t::key) {
      const auto& key = value.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        fail(ErrorCode::kFormat, "{}: duplicate key {}", file_, quote_name(key));
      }
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
};

json read_json_object(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string name = path.string();
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  // The parser takes a NUL for the end of its input and would never see what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    const std::string looks_like = what_it_looks_like(file.bytes());
    fail(ErrorCode::kFormat, "{}: NUL byte at byte {}, JSON text has none{}", name, nul,
         looks_like.empty() ? "" : "; it looks like " + looks_like);
  }
  DuplicateKeyCheck check(name);
  json parsed;
  try {
    parsed = json::parse(text.begin(), text.end(), std::ref(check));
  } catch (const json::parse_error& error) {
    const std::string looks_like = text.starts_with('{') ? "" : what_it_looks_like(file.bytes());
    fail(ErrorCode::kFormat, "{}: not valid JSON{}: {}", name,
         looks_like.empty() ? "" : ", it looks like " + looks_like,
         std::string_view(error.what()).substr(0, 240));
  }
  if (!parsed.is_object()) {
    fail(ErrorCode::kFormat, "{}: holds {}, must hold a JSON object", name, parsed.type_name());
  }
  return parsed;
}

bool stays_inside(const std::filesystem::path& name) {
  if (name.empty() || name.is_absolute() || !name.has_filename()) return false;
  return std::ranges::find(name, "..") == name.end();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> read_weight_map(
    const std::filesystem::path& index) {
  const json parsed = read_json_object(index);
  const auto map = parsed.find("weight_map");
  if (map == parsed.end() || !map->is_object()) {
    fail(ErrorCode::kFormat, "{}: no object \"weight_map\" in it, not an index of shards",
         index.string());
  }
  std::vector<std::pair<std::string, std::string>> entries;
  entries.reserve(map->size());
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !stays_inside(file.get_ref<const std::string&>())) {
      fail(ErrorCode::kFormat,
           "{}: weight_map sends {} to {}, must be the name of a file in the index's directory",
           index.string(), quote_name(tensor), quote_name(file.dump()));
    }
    entries.emplace_back(tensor, file.get<std::string>());
  }
  return entries;
}

std::optional<std::pair<std::int64_t, std::int64_t>> read_weight_block_size(
    const std::filesystem::path& config) {
  const json parsed = read_json_object(config);
  const auto quantization = parsed.find("quantization_config");
  if (quantization == parsed.end() || !quantization->is_object()) return std::nullopt;
  const auto size = quantization->find("weight_block_size");
  if (size == quantization->end() || size->is_null()) return std::nullopt;
  const auto positive = [](const json& n) {
    return n.is_number_integer() && n > 0 && n <= std::int64_t{1} << 32;
  };
  if (!size->is_array() || size->size() != 2 || !positive((*size)[0]) || !positive((*size)[1])) {
    fail(ErrorCode::kFormat,
         "{}: quantization_config.weight_block_size is {}, must be two positive numbers",
         config.string(), quote_name(size->dump()));
  }
  return std::pair((*size)[0].get<std::int64_t>(), (*size)[1].get<std::int64_t>());
}

}  // namespace rowband
