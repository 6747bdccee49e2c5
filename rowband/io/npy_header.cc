#include "rowband/io/npy_header.h"

#include <charconv>
#include <system_error>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/io/file_signature.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
// numpy's own readers refuse longer dictionaries unless told to trust the file.
constexpr std::size_t kMaxDictionary = 10'000;

// Reads the one Python literal that a .npy header holds:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class DictionaryParser {
 public:
  DictionaryParser(std::string_view text, const std::string& file) : text_(text), file_(file) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      parse_item();
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (position_ != text_.size()) refuse("the end of the header");
    if (!has_descr_ || !has_order_ || !has_shape_) {
      fail(ErrorCode::kFormat, "{}: the .npy header lacks {}", file_,
           !has_descr_   ? "'descr'"
           : !has_order_ ? "'fortran_order'"
                         : "'shape'");
    }
    return std::move(header_);
  }

 private:
  void parse_item() {
    const std::string key = string();
    expect(':');
    if (key == "descr") {
      mark(has_descr_, key);
      header_.descr = string();
    } else if (key == "fortran_order") {
      mark(has_order_, key);
      header_.fortran_order = boolean();
    } else if (key == "shape") {
      mark(has_shape_, key);
      header_.shape = tuple();
    } else {
      fail(ErrorCode::kFormat, "{}: unknown key {} in the .npy header", file_, quote_name(key));
    }
  }

  void mark(bool& seen, const std::string& key) {
    if (seen) fail(ErrorCode::kFormat, "{}: duplicate key '{}' in the .npy header", file_, key);
    seen = true;
  }

  std::string string() {
    skip_blanks();
    const char quote = position_ < text_.size() ? text_[position_] : '\0';
    if (quote == '[') {
      fail(ErrorCode::kFormat, "{}: a structured dtype, need '<f4' (fp32) or '<V2' (bfloat16)",
           file_);
    }
    const std::size_t end = text_.find(quote, position_ + 1);
    if ((quote != '\'' && quote != '"') || end == std::string_view::npos) refuse("a string");
    const std::string_view value = text_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    return std::string(value);
  }

  bool boolean() {
    skip_blanks();
    for (const bool value : {true, false}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        return value;
      }
    }
    refuse("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> values;
    expect('(');
    while (!accept(')')) {
      values.push_back(integer());
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return values;
  }

  std::int64_t integer() {
    skip_blanks();
    std::int64_t value = 0;
    const char* const first = text_.data() + position_;
    const auto [next, error] = std::from_chars(first, text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) refuse("a dimension from 0 to 2^63 - 1");
    position_ += static_cast<std::size_t>(next - first);
    return value;
  }

  void skip_blanks() {
    const std::size_t next = text_.find_first_not_of(" \t\n\r", position_);
    position_ = next == std::string_view::npos ? text_.size() : next;
  }

  bool accept(char wanted) {
    skip_blanks();
    if (position_ >= text_.size() || text_[position_] != wanted) return false;
    ++position_;
    return true;
  }

  void expect(char wanted) {
    if (!accept(wanted)) refuse(std::string{'\'', wanted, '\''});
  }

  [[noreturn]] void refuse(const std::string& wanted) const {
    fail(ErrorCode::kFormat, "{}: byte {} of the .npy header's dictionary: expected {}, found {}",
         file_, position_, wanted,
         position_ < text_.size() ? quote_name(text_.substr(position_, 20)) : "its end");
  }

  std::string_view text_;
  const std::string& file_;
  std::size_t position_ = 0;
  NpyHeader header_;
  bool has_descr_ = false;
  bool has_order_ = false;
  bool has_shape_ = false;
};

// The dictionary's length field: 2 bytes in version 1, 4 in the later ones.
std::size_t read_length(std::string_view text, std::size_t field_bytes) {
  std::size_t length = 0;
  for (std::size_t i = 0; i < field_bytes; ++i) {
    length |= std::size_t{static_cast<unsigned char>(text[kMagic.size() + 2 + i])} << (8 * i);
  }
  return length;
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(kMagic)) {
    const std::string looks_like = what_it_looks_like(bytes);
    fail(ErrorCode::kFormat, "{}: not a .npy file, {}", file,
         bytes.empty()        ? "it is empty"
         : looks_like.empty() ? "it does not begin with \\x93NUMPY"
                              : "it looks like " + looks_like);
  }
  const std::size_t versioned = kMagic.size() + 2;
  if (text.size() < versioned) fail(ErrorCode::kFormat, "{}: cut short in its .npy header", file);
  const int major = static_cast<unsigned char>(text[kMagic.size()]);
  const int minor = static_cast<unsigned char>(text[kMagic.size() + 1]);
  if (major < 1 || major > 3 || minor != 0) {
    fail(ErrorCode::kFormat, "{}: .npy version {}.{}, can read 1.0, 2.0 and 3.0", file, major,
         minor);
  }
  const std::size_t field_bytes = major == 1 ? 2 : 4;
  const std::size_t begin = versioned + field_bytes;
  if (text.size() < begin) fail(ErrorCode::kFormat, "{}: cut short in its .npy header", file);
  const std::size_t length = read_length(text, field_bytes);
  if (length > kMaxDictionary) {
    fail(ErrorCode::kFormat, "{}: the .npy header is said to be {} bytes long, the limit is {}",
         file, length, kMaxDictionary);
  }
  if (length > text.size() - begin) {
    fail(ErrorCode::kFormat, "{}: the .npy header is said to be {} bytes long, {} follow", file,
         length, text.size() - begin);
  }
  NpyHeader header = DictionaryParser(text.substr(begin, length), file).parse();
  header.data_begin = begin + length;
  return header;
}

std::string make_npy_header(std::string_view descr, std::int64_t rows, std::int64_t cols) {
  constexpr std::size_t kAlignment = 64;
  std::string dictionary = fmt::format(
      "{{'descr': '{}', 'fortran_order': False, 'shape': ({}, {}), }}", descr, rows, cols);
  const std::size_t before = kMagic.size() + 4;
  const std::size_t unpadded = before + dictionary.size() + 1;
  dictionary.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  dictionary += '\n';
  std::string header(kMagic);
  header += '\x01';
  header += '\0';
  header += static_cast<char>(dictionary.size() & 0xFF);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace rowband
