#include "rowband/io/matrix_file.h"

#include <algorithm>
#include <array>
#include <span>

#include "rowband/base/fail.h"
#include "rowband/io/atomic_file.h"
#include "rowband/io/element_data.h"
#include "rowband/io/mapped_file.h"
#include "rowband/io/npy_header.h"
#include "rowband/io/quote_name.h"
#include "rowband/io/safetensors.h"

namespace rowband {
namespace {

enum class Format { kNpy, kSafetensors };

Format format_of(const std::filesystem::path& path) {
  const std::string ending = path.extension().string();
  if (ending == ".npy") return Format::kNpy;
  if (ending == ".safetensors") return Format::kSafetensors;
  fail(ErrorCode::kInvalidArgument, "{}: a matrix file ends in .npy or .safetensors",
       path.string());
}

std::string names_of(const SafetensorsFile& file) {
  constexpr std::size_t kMost = 20;
  std::string names;
  for (const TensorInfo& tensor : file.tensors()) {
    if (&tensor - file.tensors().data() == kMost) return names + ", ...";
    names += (names.empty() ? "" : ", ") + quote_name(tensor.name);
  }
  return names.empty() ? "none" : names;
}

const TensorInfo& choose_tensor(const SafetensorsFile& file, const std::string& name) {
  if (name.empty()) {
    if (file.tensors().size() == 1) return file.tensors().front();
    fail(ErrorCode::kFormat, "{}: {} tensors, name the one to read: {}", file.name(),
         file.tensors().size(), names_of(file));
  }
  const TensorInfo* tensor = file.find(name);
  if (tensor == nullptr) {
    fail(ErrorCode::kFormat, "{}: no tensor {}; the file holds: {}", file.name(), quote_name(name),
         names_of(file));
  }
  return *tensor;
}

template <typename T>
std::vector<Bf16> elements(const TensorInfo& tensor) {
  std::vector<Bf16> values(tensor.data.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = as_bf16(load_element<T>(tensor.data, i));
  }
  return values;
}

Bf16Matrix read_safetensors_matrix(const std::filesystem::path& path, const std::string& name) {
  const auto file = SafetensorsFile::open(path);
  const TensorInfo& tensor = choose_tensor(*file, name);
  if ((tensor.dtype != DType::kF32 && tensor.dtype != DType::kBf16) || tensor.shape.empty()) {
    fail(ErrorCode::kFormat, "{}: tensor {} is {} {}, need F32 or BF16 of one dimension or more",
         file->name(), quote_name(tensor.name), quote_name(tensor.dtype_name),
         shape_text(tensor.shape));
  }
  Bf16Matrix matrix;
  matrix.cols = tensor.shape.back();
  matrix.rows = 1;
  // No overflow: the file's checks multiplied the same dimensions in the same order.
  for (std::size_t d = 0; d + 1 < tensor.shape.size(); ++d) matrix.rows *= tensor.shape[d];
  matrix.values = tensor.dtype == DType::kF32 ? elements<float>(tensor) : elements<Bf16>(tensor);
  return matrix;
}

void write_npy(const std::filesystem::path& path, const Bf16Matrix& matrix) {
  const std::string header = make_npy_header("<f4", matrix.rows, matrix.cols);
  AtomicFile file(path);
  file.write_at(0, std::as_bytes(std::span(header)));
  std::uint64_t offset = header.size();
  constexpr std::size_t kPiece = 1 << 18;  // elements widened at a time
  std::vector<float> piece;
  for (std::size_t i = 0; i < matrix.values.size(); i += kPiece) {
    piece.clear();
    for (const Bf16 value :
         std::span(matrix.values).subspan(i).first(std::min(kPiece, matrix.values.size() - i))) {
      piece.push_back(to_float(value));
    }
    const auto bytes = std::as_bytes(std::span(piece));
    file.write_at(offset, bytes);
    offset += bytes.size();
  }
  file.commit();
}

void check_size(const std::filesystem::path& path, const Bf16Matrix& matrix) {
  std::int64_t count = 0;
  if (matrix.rows < 0 || matrix.cols < 0 ||
      __builtin_mul_overflow(matrix.rows, matrix.cols, &count) ||
      static_cast<std::uint64_t>(count) != matrix.values.size()) {
    fail(ErrorCode::kInvalidArgument, "{}: a matrix of [{}, {}] cannot have {} values",
         path.string(), matrix.rows, matrix.cols, matrix.values.size());
  }
}

}  // namespace

Bf16Matrix read_matrix(const std::filesystem::path& path, const std::string& tensor) {
  if (format_of(path) == Format::kSafetensors) return read_safetensors_matrix(path, tensor);
  const MappedFile file(path);
  return parse_npy(file.bytes().data(), file.bytes().size(), path.string());
}

void write_matrix(const std::filesystem::path& path, const Bf16Matrix& matrix,
                  const std::string& tensor) {
  check_size(path, matrix);
  if (format_of(path) == Format::kNpy) return write_npy(path, matrix);
  const std::array<TensorToWrite, 1> tensors{
      TensorToWrite{.name = tensor,
                    .dtype = DType::kBf16,
                    .shape = {matrix.rows, matrix.cols},
                    .data = std::as_bytes(std::span(matrix.values))}};
  write_safetensors(path, tensors);
}

}  // namespace rowband
