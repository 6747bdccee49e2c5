// quantize_checkpoint of checkpoint.h: one tensor at a time, of which 128 rows are in memory.
#include <cmath>
#include <set>

#include "rowband/base/fail.h"
#include "rowband/io/checkpoint.h"
#include "rowband/io/element_data.h"
#include "rowband/io/fp8_weight_writer.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

constexpr std::string_view kWeightEnding = ".weight";

bool can_be_quantised(const TensorInfo& tensor) {
  return tensor.name.ends_with(kWeightEnding) && tensor.shape.size() == 2 && !tensor.data.empty() &&
         (tensor.dtype == DType::kF32 || tensor.dtype == DType::kBf16);
}

// Full names of the tensors to quantise.
std::set<std::string> choose(const Checkpoint& source, const std::vector<std::string>& names) {
  std::set<std::string> chosen;
  for (std::string name : names) {
    if (!name.ends_with(kWeightEnding)) name += kWeightEnding;
    const TensorInfo tensor = source.tensor(name);
    if (!can_be_quantised(tensor)) {
      fail(ErrorCode::kFormat, "{}: tensor {} is {} {}, can quantise F32 or BF16 matrices",
           source.file_of(name), quote_name(name), quote_name(tensor.dtype_name),
           shape_text(tensor.shape));
    }
    chosen.insert(std::move(name));
  }
  if (!names.empty()) return chosen;
  for (const std::string& name : source.names()) {
    if (can_be_quantised(source.tensor(name))) chosen.insert(name);
  }
  return chosen;
}

// Rows [first, first + rows) as fp32. A NaN or an infinity would make a weight that no reader
// takes.
void load_rows(const Checkpoint& source, const TensorInfo& tensor, std::int64_t first,
               std::int64_t rows, float* out) {
  const std::int64_t cols = tensor.shape[1];
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const auto index = static_cast<std::size_t>(first * cols + i);
    out[i] = tensor.dtype == DType::kF32 ? load_element<float>(tensor.data, index)
                                         : to_float(load_element<Bf16>(tensor.data, index));
    if (!std::isfinite(out[i])) {
      fail(ErrorCode::kFormat, "{}: tensor {}: the value at [{}, {}] is {}, must be finite",
           source.file_of(tensor.name), quote_name(tensor.name), first + i / cols, i % cols,
           out[i]);
    }
  }
}

}  // namespace

void quantize_checkpoint(const Checkpoint& source, const std::vector<std::string>& names,
                         ScaleFormat format, const std::filesystem::path& destination) {
  const std::set<std::string> chosen = choose(source, names);
  std::vector<TensorInfo> tensors;
  std::vector<TensorSpec> specs;
  for (const std::string& name : source.names()) {
    tensors.push_back(source.tensor(name));
    const TensorInfo& tensor = tensors.back();
    if (chosen.contains(name)) {
      const std::string base = name.substr(0, name.size() - kWeightEnding.size());
      const auto pair = fp8_weight_specs(base, tensor.shape[0], tensor.shape[1], format);
      specs.insert(specs.end(), pair.begin(), pair.end());
    } else {
      specs.push_back({.name = name,
                       .dtype_name = tensor.dtype_name,
                       .shape = tensor.shape,
                       .bytes = tensor.data.size()});
    }
  }
  SafetensorsWriter writer(destination, specs);
  std::size_t index = 0;
  for (const TensorInfo& tensor : tensors) {
    if (chosen.contains(tensor.name)) {
      write_fp8_weight(writer, index, tensor.shape[0], tensor.shape[1], format,
                       [&](std::int64_t first, std::int64_t rows, float* out) {
                         load_rows(source, tensor, first, rows, out);
                       });
      index += 2;
    } else {
      writer.write(index++, 0, tensor.data);
    }
  }
  writer.finish();
}

}  // namespace rowband
