#include "rowband/io/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "rowband/base/fail.h"
#include "rowband/io/quote_name.h"
#include "rowband/io/safetensors.h"
#include "rowband/io/safetensors_dtype.h"
#include "rowband/io/safetensors_header.h"

namespace rowband {
namespace {

constexpr std::uint64_t kAlignment = 8;

void check_size(const TensorSpec& tensor) {
  const DTypeTraits* traits = find_dtype(tensor.dtype_name);
  if (traits == nullptr) return;  // carried over from another file, its size is what it is
  std::uint64_t bits = static_cast<std::uint64_t>(traits->bits);
  for (const std::int64_t dim : tensor.shape) {
    if (dim < 0 || __builtin_mul_overflow(bits, static_cast<std::uint64_t>(dim), &bits)) {
      fail(ErrorCode::kInvalidArgument, "tensor {}: shape {} is negative or overflows 64 bits",
           quote_name(tensor.name), shape_text(tensor.shape));
    }
  }
  if (bits % 8 != 0 || bits / 8 != tensor.bytes) {
    fail(ErrorCode::kInvalidArgument, "tensor {}: {} {} needs {} bytes, got {}",
         quote_name(tensor.name), tensor.dtype_name, shape_text(tensor.shape), (bits + 7) / 8,
         tensor.bytes);
  }
}

void check_tensors(std::span<const TensorSpec> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      fail(ErrorCode::kInvalidArgument, "a tensor cannot be named {}", quote_name(tensor.name));
    }
    if (!names.insert(tensor.name).second) {
      fail(ErrorCode::kInvalidArgument, "duplicate tensor {}", quote_name(tensor.name));
    }
    check_size(tensor);
  }
}

// Indices of `tensors`, wide elements first, otherwise as given.
std::vector<std::size_t> order_of_data(std::span<const TensorSpec> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t i) {
    const DTypeTraits* traits = find_dtype(tensors[i].dtype_name);
    return traits == nullptr ? std::int64_t{0} : traits->bits;
  });
  return order;
}

std::string dump_header(const nlohmann::ordered_json& header) {
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::type_error& error) {
    fail(ErrorCode::kInvalidArgument, "a tensor name is not UTF-8: {}", error.what());
  }
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  if (text.size() > kMaxHeaderBytes) {
    fail(ErrorCode::kInvalidArgument, "{} bytes of header, the limit is {} (100 MB)", text.size(),
         kMaxHeaderBytes);
  }
  return text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     std::span<const TensorSpec> tensors)
    : file_(path), places_(tensors.size()) {
  check_tensors(tensors);
  // Built as a sequence: an ordered_json object would search all names at each insertion.
  nlohmann::ordered_json::object_t entries;
  std::uint64_t offset = 0;
  for (const std::size_t i : order_of_data(tensors)) {
    const TensorSpec& tensor = tensors[i];
    places_[i] = {.name = tensor.name, .offset = offset, .bytes = tensor.bytes, .written = 0};
    entries.push_back({tensor.name,
                       {{"dtype", tensor.dtype_name},
                        {"shape", tensor.shape},
                        {"data_offsets", {offset, offset + tensor.bytes}}}});
    offset += tensor.bytes;
  }
  const std::string header = dump_header(nlohmann::ordered_json(std::move(entries)));
  const std::uint64_t length = header.size();
  for (Place& place : places_) place.offset += sizeof(length) + length;
  file_.write_at(0, std::as_bytes(std::span(&length, 1)));
  file_.write_at(sizeof(length), std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::size_t index, std::uint64_t offset,
                              std::span<const std::byte> bytes) {
  Place& place = places_.at(index);
  if (offset > place.bytes || bytes.size() > place.bytes - offset) {
    fail(ErrorCode::kInternal, "tensor {}: {} bytes at {} do not fit in its {}",
         quote_name(place.name), bytes.size(), offset, place.bytes);
  }
  file_.write_at(place.offset + offset, bytes);
  place.written += bytes.size();
}

void SafetensorsWriter::finish() {
  for (const Place& place : places_) {
    if (place.written != place.bytes) {
      fail(ErrorCode::kInternal, "tensor {}: {} of {} bytes were written", quote_name(place.name),
           place.written, place.bytes);
    }
  }
  file_.commit();
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors) {
  std::vector<TensorSpec> specs;
  specs.reserve(tensors.size());
  for (const TensorToWrite& tensor : tensors) {
    specs.push_back({.name = tensor.name,
                     .dtype_name = std::string(dtype_traits(tensor.dtype).name),
                     .shape = tensor.shape,
                     .bytes = tensor.data.size()});
  }
  SafetensorsWriter writer(path, specs);
  for (std::size_t i = 0; i < tensors.size(); ++i) writer.write(i, 0, tensors[i].data);
  writer.finish();
}

}  // namespace rowband
