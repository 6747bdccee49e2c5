#include "rowband/io/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

// Events of the JSON parser, checked against the one structure that a header may have:
//   { "__metadata__": { key: string, ... },
//     name: { "dtype": string, "shape": [n, ...], "data_offsets": [begin, end], other: anything } }
// A DOM would drop duplicate names silently and take many times the memory of the header.
class HeaderHandler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(const std::string& file) : file_(file) {}

  std::vector<HeaderEntry> take_entries() { return std::move(entries_); }

  bool key(string_t& name) override {
    switch (at_) {
      case At::kNames:
        return begin_value_of(name);
      case At::kMetadataKeys:
        at_ = At::kMetadataValue;
        return true;
      case At::kFields:
        return begin_field(name);
      default:
        return true;  // inside a skipped value
    }
  }

  bool start_object(std::size_t) override {
    switch (at_) {
      case At::kDocument:
        at_ = At::kNames;
        return true;
      case At::kMetadata:
        at_ = At::kMetadataKeys;
        return true;
      case At::kEntry:
        at_ = At::kFields;
        return true;
      case At::kSkipped:
        ++skipped_depth_;
        return true;
      default:
        unexpected("an object");
    }
  }

  bool end_object() override {
    switch (at_) {
      case At::kFields:
        require_all_fields();
        at_ = At::kNames;
        return true;
      case At::kMetadataKeys:
        at_ = At::kNames;
        return true;
      case At::kSkipped:
        --skipped_depth_;
        return end_skipped();
      default:
        at_ = At::kDocument;
        return true;
    }
  }

  bool start_array(std::size_t) override {
    switch (at_) {
      case At::kShape:
        at_ = At::kShapeItems;
        return true;
      case At::kOffsets:
        at_ = At::kOffsetItems;
        return true;
      case At::kSkipped:
        ++skipped_depth_;
        return true;
      default:
        unexpected("an array");
    }
  }

  bool end_array() override {
    if (at_ == At::kSkipped) {
      --skipped_depth_;
      return end_skipped();
    }
    if (at_ == At::kOffsetItems && offset_count_ != 2) {
      fail(ErrorCode::kFormat, "{}: tensor {}: data_offsets has {} numbers, must have 2", file_,
           name(), offset_count_);
    }
    at_ = At::kFields;
    return true;
  }

  bool string(string_t& value) override {
    switch (at_) {
      case At::kDtype:
        entries_.back().dtype_name = value;
        at_ = At::kFields;
        return true;
      case At::kMetadataValue:
        at_ = At::kMetadataKeys;
        return true;
      default:
        return scalar("a string");
    }
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ == At::kOffsetItems) return add_offset(value);
    if (at_ != At::kShapeItems) return scalar("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      bad_number(std::to_string(value));
    }
    entries_.back().shape.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool number_integer(number_integer_t value) override {  // negative ones only
    return in_numbers() ? bad_number(std::to_string(value)) : scalar("a number");
  }

  bool number_float(number_float_t, const string_t& text) override {
    return in_numbers() ? bad_number(text) : scalar("a number");
  }

  bool null() override { return scalar("null"); }
  bool boolean(bool) override { return scalar("a boolean"); }
  bool binary(binary_t&) override { return scalar("binary"); }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    fail(ErrorCode::kFormat, "{}: the header is not valid JSON at its byte {}: {}", file_, position,
         std::string_view(error.what()).substr(0, 240));
  }

 private:
  // What comes next.
  enum class At {
    kDocument,
    kNames,
    kMetadata,
    kMetadataKeys,
    kMetadataValue,
    kEntry,
    kFields,
    kDtype,
    kShape,
    kShapeItems,
    kOffsets,
    kOffsetItems,
    kSkipped,  // the value of a field that this reader does not know
  };

  std::string name() const { return quote_name(entries_.empty() ? "" : entries_.back().name); }

  bool begin_value_of(const std::string& name) {
    if (!names_.insert(name).second) {
      fail(ErrorCode::kFormat, "{}: duplicate name {} in the header, each name must occur once",
           file_, quote_name(name));
    }
    if (name == kMetadataName) {
      at_ = At::kMetadata;
      return true;
    }
    entries_.push_back({.name = name, .dtype_name = {}, .shape = {}});
    has_dtype_ = has_shape_ = has_offsets_ = false;
    at_ = At::kEntry;
    return true;
  }

  bool begin_field(const std::string& field) {
    if (field == "dtype") return begin_known_field(field, has_dtype_, At::kDtype);
    if (field == "shape") return begin_known_field(field, has_shape_, At::kShape);
    if (field == "data_offsets") {
      offset_count_ = 0;
      return begin_known_field(field, has_offsets_, At::kOffsets);
    }
    skipped_depth_ = 0;
    at_ = At::kSkipped;
    return true;
  }

  bool begin_known_field(const std::string& field, bool& seen, At next) {
    if (seen) fail(ErrorCode::kFormat, "{}: tensor {}: duplicate field {}", file_, name(), field);
    seen = true;
    at_ = next;
    return true;
  }

  void require_all_fields() const {
    const char* missing = !has_dtype_     ? "dtype"
                          : !has_shape_   ? "shape"
                          : !has_offsets_ ? "data_offsets"
                                          : nullptr;
    if (missing != nullptr) {
      fail(ErrorCode::kFormat, "{}: tensor {}: the field {} is missing", file_, name(), missing);
    }
  }

  bool add_offset(std::uint64_t value) {
    if (offset_count_ == 0) entries_.back().begin = value;
    if (offset_count_ == 1) entries_.back().end = value;
    ++offset_count_;
    return true;
  }

  bool in_numbers() const { return at_ == At::kShapeItems || at_ == At::kOffsetItems; }

  [[noreturn]] bool bad_number(std::string_view text) const {
    fail(ErrorCode::kFormat,
         "{}: tensor {}: {} holds {}, must be a whole number from 0 to 2^63 - 1", file_, name(),
         at_ == At::kShapeItems ? "shape" : "data_offsets", text.substr(0, 40));
  }

  bool scalar(const char* kind) {
    if (at_ == At::kSkipped) return end_skipped();
    unexpected(kind);
  }

  bool end_skipped() {
    if (skipped_depth_ == 0) at_ = At::kFields;
    return true;
  }

  [[noreturn]] void unexpected(const char* found) const {
    switch (at_) {
      case At::kDocument:
        fail(ErrorCode::kFormat, "{}: the header is {}, must be an object", file_, found);
      case At::kMetadata:
      case At::kMetadataValue:
        fail(ErrorCode::kFormat, "{}: {} must be an object of strings, but holds {}", file_,
             kMetadataName, found);
      default:
        fail(ErrorCode::kFormat, "{}: tensor {}: {} is {}, must be {}", file_, name(), subject(),
             found, wanted());
    }
  }

  const char* subject() const {
    switch (at_) {
      case At::kEntry:
        return "its entry";
      case At::kDtype:
        return "dtype";
      case At::kShape:
        return "shape";
      case At::kShapeItems:
        return "an item of shape";
      case At::kOffsets:
        return "data_offsets";
      default:
        return "an item of data_offsets";
    }
  }

  const char* wanted() const {
    switch (at_) {
      case At::kEntry:
        return "an object";
      case At::kDtype:
        return "a string";
      case At::kShape:
      case At::kOffsets:
        return "an array";
      default:
        return "a whole number";
    }
  }

  const std::string& file_;
  std::vector<HeaderEntry> entries_;
  std::unordered_set<std::string> names_;
  At at_ = At::kDocument;
  std::size_t skipped_depth_ = 0;
  std::size_t offset_count_ = 0;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

void refuse_nul(std::string_view text, const std::string& file) {
  // The JSON parser takes a NUL for the end of its input and would never see what follows.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    fail(ErrorCode::kFormat,
         "{}: NUL byte at byte {} of the header; a header is padded with blanks (0x20)", file, nul);
  }
}

}  // namespace

std::vector<HeaderEntry> parse_safetensors_header(std::span<const std::byte> header,
                                                  const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  refuse_nul(text, file);
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || text[start] != '{') {
    fail(ErrorCode::kFormat, "{}: the header of {} bytes does not begin with '{{'", file,
         header.size());
  }
  HeaderHandler handler(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &handler);
  return handler.take_entries();
}

}  // namespace rowband
