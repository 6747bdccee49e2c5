#include "rowband/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/io/file_signature.h"
#include "rowband/io/mapped_file.h"
#include "rowband/io/quote_name.h"
#include "rowband/io/safetensors_dtype.h"
#include "rowband/io/safetensors_header.h"

namespace rowband {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t kLengthBytes = 8;

// Throws with a guess at what the file is, when its first bytes give it away.
void refuse_other_formats(std::span<const std::byte> bytes, const std::string& file) {
  const std::string looks_like = what_it_looks_like(bytes);
  if (!looks_like.empty()) {
    fail(ErrorCode::kFormat, "{}: not a safetensors file, it looks like {}", file, looks_like);
  }
}

std::uint64_t read_header_length(std::span<const std::byte> bytes, const std::string& file) {
  if (bytes.size() < kLengthBytes) {
    refuse_other_formats(bytes, file);
    fail(ErrorCode::kFormat, "{}: {}, a safetensors file has at least {} bytes", file,
         bytes.empty() ? "the file is empty" : fmt::format("only {} bytes long", bytes.size()),
         kLengthBytes + 2);
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::uint64_t rest = bytes.size() - kLengthBytes;
  // Only now, since a true header length may begin with the bytes of some signature.
  if (length > kMaxHeaderBytes || length > rest) refuse_other_formats(bytes, file);
  if (length > kMaxHeaderBytes) {
    fail(ErrorCode::kFormat, "{}: the header is said to be {} bytes long, the limit is {} (100 MB)",
         file, length, kMaxHeaderBytes);
  }
  if (length > rest) {
    fail(ErrorCode::kFormat,
         "{}: the header is said to be {} bytes long, but only {} bytes follow (file cut short?)",
         file, length, rest);
  }
  return length;
}

// Holds the entry's shape against its byte range. Sizes of dtypes that the format does not define
// are unknown, so their range is taken as given.
void check_size(const HeaderEntry& entry, const std::string& file) {
  const DTypeTraits* traits = find_dtype(entry.dtype_name);
  if (traits == nullptr) return;
  std::uint64_t bits = static_cast<std::uint64_t>(traits->bits);
  for (const std::int64_t dim : entry.shape) {
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(dim), &bits)) {
      fail(ErrorCode::kFormat, "{}: tensor {}: the size of {} {} overflows 64 bits", file,
           quote_name(entry.name), entry.dtype_name, shape_text(entry.shape));
    }
  }
  if (bits % 8 != 0) {
    fail(ErrorCode::kFormat,
         "{}: tensor {}: {} {} takes {} bits, which is no whole number of bytes", file,
         quote_name(entry.name), entry.dtype_name, shape_text(entry.shape), bits);
  }
  if (bits / 8 != entry.end - entry.begin) {
    fail(ErrorCode::kFormat,
         "{}: tensor {}: {} {} needs {} bytes, but data_offsets [{}, {}] has {}", file,
         quote_name(entry.name), entry.dtype_name, shape_text(entry.shape), bits / 8, entry.begin,
         entry.end, entry.end - entry.begin);
  }
}

void check_range(const HeaderEntry& entry, std::uint64_t data_size, const std::string& file) {
  if (entry.begin > entry.end) {
    fail(ErrorCode::kFormat, "{}: tensor {}: data_offsets [{}, {}] end before they begin", file,
         quote_name(entry.name), entry.begin, entry.end);
  }
  check_size(entry, file);
  if (entry.end > data_size) {
    fail(ErrorCode::kFormat,
         "{}: tensor {}: data_offsets [{}, {}] reach past the {} bytes of data (file cut short?)",
         file, quote_name(entry.name), entry.begin, entry.end, data_size);
  }
}

// The tensors must cover the data section without gap, overlap or rest, as the reference
// implementation demands. `entries` are in the order of their bytes.
void check_coverage(std::span<const HeaderEntry> entries, std::uint64_t data_size,
                    const std::string& file) {
  std::uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry& entry : entries) {
    if (entry.begin < covered) {
      fail(ErrorCode::kFormat, "{}: tensor {} at [{}, {}] overlaps tensor {} at [{}, {}]", file,
           quote_name(entry.name), entry.begin, entry.end, quote_name(previous->name),
           previous->begin, previous->end);
    }
    if (entry.begin > covered) {
      fail(ErrorCode::kFormat, "{}: data bytes {} to {}, before tensor {}, belong to no tensor",
           file, covered, entry.begin, quote_name(entry.name));
    }
    covered = entry.end;
    previous = &entry;
  }
  if (covered != data_size) {
    fail(ErrorCode::kFormat, "{}: {} trailing bytes after the data of the last tensor", file,
         data_size - covered);
  }
}

class ParsedFile final : public SafetensorsFile {
 public:
  // `mapping` keeps `bytes` alive; null when the caller does.
  ParsedFile(std::string name, std::unique_ptr<MappedFile> mapping,
             std::span<const std::byte> bytes)
      : name_(std::move(name)), mapping_(std::move(mapping)) {
    const std::uint64_t header_length = read_header_length(bytes, name_);
    const auto data = bytes.subspan(kLengthBytes + header_length);
    auto entries = parse_safetensors_header(bytes.subspan(kLengthBytes, header_length), name_);
    for (const HeaderEntry& entry : entries) check_range(entry, data.size(), name_);
    std::ranges::stable_sort(
        entries, {}, [](const HeaderEntry& entry) { return std::pair(entry.begin, entry.end); });
    check_coverage(entries, data.size(), name_);
    add_tensors(std::move(entries), data);
  }

  const std::string& name() const override { return name_; }
  const std::vector<TensorInfo>& tensors() const override { return tensors_; }
  const TensorInfo* find(std::string_view tensor) const override {
    const auto found = by_name_.find(tensor);
    return found == by_name_.end() ? nullptr : &tensors_[found->second];
  }

 private:
  void add_tensors(std::vector<HeaderEntry> entries, std::span<const std::byte> data) {
    tensors_.reserve(entries.size());
    for (HeaderEntry& entry : entries) {
      const DTypeTraits* traits = find_dtype(entry.dtype_name);
      tensors_.push_back({.name = std::move(entry.name),
                          .dtype = traits == nullptr ? DType::kOther : traits->dtype,
                          .dtype_name = std::move(entry.dtype_name),
                          .shape = std::move(entry.shape),
                          .data = data.subspan(entry.begin, entry.end - entry.begin)});
    }
    by_name_.reserve(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
  }

  std::string name_;
  std::unique_ptr<MappedFile> mapping_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::size_t> by_name_;  // keys live in tensors_
};

}  // namespace

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  auto mapping = std::make_unique<MappedFile>(path);
  const auto bytes = mapping->bytes();
  return std::make_shared<ParsedFile>(path.string(), std::move(mapping), bytes);
}

std::shared_ptr<const SafetensorsFile> SafetensorsFile::from_bytes(std::span<const std::byte> bytes,
                                                                   std::string name) {
  return std::make_shared<ParsedFile>(std::move(name), nullptr, bytes);
}

}  // namespace rowband
