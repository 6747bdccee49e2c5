// parse_npy of matrix_file.h.

#include <span>

#include "rowband/base/fail.h"
#include "rowband/io/element_data.h"
#include "rowband/io/matrix_file.h"
#include "rowband/io/npy_header.h"
#include "rowband/io/quote_name.h"
#include "rowband/io/safetensors.h"

namespace rowband {
namespace {

enum class NpyType { kF32, kBf16 };

NpyType type_of(const NpyHeader& header, const std::string& file) {
  if (header.descr == "<f4") return NpyType::kF32;
  // numpy knows no bfloat16; arrays of ml_dtypes' are saved as raw two-byte elements.
  if (header.descr == "<V2" || header.descr == "|V2") return NpyType::kBf16;
  fail(ErrorCode::kFormat, "{}: dtype {} of shape {}, can read '<f4' (fp32) or '<V2' (bfloat16)",
       file, quote_name(header.descr), shape_text(header.shape));
}

// Elements of the array, after holding them against the bytes that are there, so that nothing is
// allocated on a header's word.
std::int64_t checked_count(const NpyHeader& header, std::int64_t element_bytes,
                           std::size_t data_bytes, const std::string& file) {
  std::int64_t bytes = element_bytes;
  for (const std::int64_t dim : header.shape) {
    if (__builtin_mul_overflow(bytes, dim, &bytes)) {
      fail(ErrorCode::kFormat, "{}: the size of {} {} overflows 64 bits", file, header.descr,
           shape_text(header.shape));
    }
  }
  if (static_cast<std::uint64_t>(bytes) != data_bytes) {
    fail(ErrorCode::kFormat, "{}: {} {} needs {} bytes, the file has {} after its header", file,
         header.descr, shape_text(header.shape), bytes, data_bytes);
  }
  return bytes / element_bytes;
}

template <typename T>
void copy_c_order(std::span<const std::byte> data, std::vector<Bf16>& out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = as_bf16(load_element<T>(data, i));
}

// Walks the elements in C order like an odometer, last dimension fastest; in Fortran order the
// first dimension has stride 1.
template <typename T>
void copy_fortran_order(std::span<const std::byte> data, std::span<const std::int64_t> shape,
                        std::vector<Bf16>& out) {
  struct Dimension {
    std::int64_t length, stride, index;
  };
  std::vector<Dimension> dimensions;
  std::int64_t stride = 1;
  for (const std::int64_t length : shape) {
    dimensions.push_back({length, stride, 0});
    stride *= length;
  }
  std::int64_t source = 0;
  for (Bf16& value : out) {
    value = as_bf16(load_element<T>(data, static_cast<std::size_t>(source)));
    for (std::size_t d = dimensions.size(); d-- > 0;) {
      Dimension& dimension = dimensions[d];
      source += dimension.stride;
      if (++dimension.index < dimension.length) break;
      source -= dimension.stride * dimension.length;
      dimension.index = 0;
    }
  }
}

template <typename T>
Bf16Matrix read_elements(const NpyHeader& header, std::span<const std::byte> data,
                         const std::string& file) {
  const std::int64_t count = checked_count(header, sizeof(T), data.size(), file);
  Bf16Matrix matrix;
  matrix.cols = header.shape.back();
  matrix.rows = 1;
  // No overflow: checked_count multiplied the same dimensions in the same order.
  for (std::size_t d = 0; d + 1 < header.shape.size(); ++d) matrix.rows *= header.shape[d];
  matrix.values.resize(static_cast<std::size_t>(count));
  if (header.fortran_order) {
    copy_fortran_order<T>(data, header.shape, matrix.values);
  } else {
    copy_c_order<T>(data, matrix.values);
  }
  return matrix;
}

}  // namespace

Bf16Matrix parse_npy(const std::byte* bytes, std::size_t size, const std::string& name) {
  const std::span file(bytes, size);
  const NpyHeader header = parse_npy_header(file, name);
  const NpyType type = type_of(header, name);
  if (header.shape.empty()) {
    fail(ErrorCode::kFormat, "{}: a single number ({} []), need a matrix or a row", name,
         header.descr);
  }
  const auto data = file.subspan(header.data_begin);
  return type == NpyType::kF32 ? read_elements<float>(header, data, name)
                               : read_elements<Bf16>(header, data, name);
}

}  // namespace rowband
