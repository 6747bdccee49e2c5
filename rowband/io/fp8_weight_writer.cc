#include "rowband/io/fp8_weight_writer.h"

#include <algorithm>
#include <span>
#include <vector>

namespace rowband {
namespace {

std::uint64_t scale_bytes(ScaleFormat format) {
  return format == ScaleFormat::kUe8m0 ? sizeof(E8m0) : sizeof(float);
}

void write_scales(SafetensorsWriter& writer, std::size_t index, std::uint64_t offset,
                  const std::vector<float>& scales, ScaleFormat format) {
  if (format == ScaleFormat::kFp32) {
    writer.write(index, offset, std::as_bytes(std::span(scales)));
    return;
  }
  std::vector<E8m0> exponents(scales.size());
  std::ranges::transform(scales, exponents.begin(), round_up_to_e8m0);  // exact: powers of two
  writer.write(index, offset, std::as_bytes(std::span(exponents)));
}

}  // namespace

std::array<TensorSpec, 2> fp8_weight_specs(const std::string& base, std::int64_t cols,
                                           std::int64_t depth, ScaleFormat format) {
  const std::int64_t row_blocks = scale_blocks(cols);
  const std::int64_t col_blocks = scale_blocks(depth);
  const bool ue8m0 = format == ScaleFormat::kUe8m0;
  return {TensorSpec{.name = base + ".weight",
                     .dtype_name = "F8_E4M3",
                     .shape = {cols, depth},
                     .bytes = static_cast<std::uint64_t>(cols * depth)},
          TensorSpec{
              .name = base + (ue8m0 ? ".scale" : ".weight_scale_inv"),
              .dtype_name = ue8m0 ? "F8_E8M0" : "F32",
              .shape = {row_blocks, col_blocks},
              .bytes = static_cast<std::uint64_t>(row_blocks * col_blocks) * scale_bytes(format)}};
}

void write_fp8_weight(SafetensorsWriter& writer, std::size_t index, std::int64_t cols,
                      std::int64_t depth, ScaleFormat format, const RowSource& rows) {
  std::vector<float> values(static_cast<std::size_t>(std::min(cols, kScaleBlock) * depth));
  std::vector<E4m3> codes(values.size());
  std::vector<float> scales(static_cast<std::size_t>(scale_blocks(depth)));
  for (std::int64_t first = 0; first < cols; first += kScaleBlock) {
    const std::int64_t count = std::min(kScaleBlock, cols - first);
    rows(first, count, values.data());
    quantize_weights(values.data(), count, depth, depth, format, codes.data(), scales.data());
    writer.write(index, static_cast<std::uint64_t>(first * depth),
                 std::as_bytes(std::span(codes).first(static_cast<std::size_t>(count * depth))));
    write_scales(
        writer, index + 1,
        static_cast<std::uint64_t>(first / kScaleBlock) * scales.size() * scale_bytes(format),
        scales, format);
  }
}

}  // namespace rowband
