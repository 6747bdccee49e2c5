// Writes a block-scale fp8 weight in DeepSeek's names, quantising it a band of rows at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "rowband/io/safetensors_writer.h"
#include "rowband/numerics/quantize.h"

namespace rowband {

// `<base>.weight` (F8_E4M3 [cols, depth]) and its scales: `<base>.weight_scale_inv` (F32) or, as
// ue8m0, `<base>.scale` (F8_E8M0).
std::array<TensorSpec, 2> fp8_weight_specs(const std::string& base, std::int64_t cols,
                                           std::int64_t depth, ScaleFormat format);

// Puts rows [first, first + rows) of the weight, [rows, depth] dense, at `out`.
using RowSource = std::function<void(std::int64_t first, std::int64_t rows, float* out)>;

// The two specs are tensors `index` and `index + 1` of the writer. Holds 128 rows at a time.
void write_fp8_weight(SafetensorsWriter& writer, std::size_t index, std::int64_t cols,
                      std::int64_t depth, ScaleFormat format, const RowSource& rows);

}  // namespace rowband
