// One rank's part of a linear layer out of a checkpoint: see checkpoint.h.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "rowband/base/fail.h"
#include "rowband/io/checkpoint.h"
#include "rowband/io/element_data.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

constexpr std::string_view kWeightEnding = ".weight";

std::string_view without_ending(std::string_view name) {
  return name.ends_with(kWeightEnding) ? name.substr(0, name.size() - kWeightEnding.size()) : name;
}

// "f.safetensors: tensor 'x.weight' (F8_E4M3 [512, 1024])", the start of a message.
std::string describe(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  return fmt::format("{}: tensor {} ({} {})", checkpoint.file_of(tensor.name),
                     quote_name(tensor.name), quote_name(tensor.dtype_name),
                     shape_text(tensor.shape));
}

void require_128_blocks(const Checkpoint& checkpoint, std::string_view name) {
  const auto [rows, cols] = checkpoint.weight_block_size();
  if (rows != kScaleBlock || cols != kScaleBlock) {
    fail(ErrorCode::kFormat,
         "{}: tensor {}: config.json states weight_block_size [{}, {}], can read [128, 128] only",
         checkpoint.file_of(name), quote_name(name), rows, cols);
  }
}

TensorInfo find_codes(const Checkpoint& checkpoint, const std::string& name) {
  TensorInfo codes = checkpoint.tensor(name);
  // By name: F8_E4M3FNUZ has the same size, and every value would come out wrong.
  if (codes.dtype != DType::kF8E4m3) {
    fail(ErrorCode::kFormat, "{}: a block-scale fp8 weight is F8_E4M3",
         describe(checkpoint, codes));
  }
  if (codes.shape.size() != 2 || codes.data.empty()) {
    fail(ErrorCode::kFormat, "{}: a weight is a matrix [N, K] that is not empty",
         describe(checkpoint, codes));
  }
  return codes;
}

TensorInfo find_scales(const Checkpoint& checkpoint, std::string_view base) {
  const std::string scale_inv = fmt::format("{}.weight_scale_inv", base);
  const std::string scale = fmt::format("{}.scale", base);
  const bool has_scale_inv = checkpoint.contains(scale_inv);
  if (has_scale_inv && checkpoint.contains(scale)) {
    fail(ErrorCode::kFormat, "{}: holds both {} and {}, which one scales the weight is not clear",
         checkpoint.file_of(scale), quote_name(scale_inv), quote_name(scale));
  }
  if (!has_scale_inv && !checkpoint.contains(scale)) {
    const std::string weight = fmt::format("{}{}", base, kWeightEnding);
    fail(ErrorCode::kFormat, "{}: tensor {} has no scales, looked for {} and {}",
         checkpoint.file_of(weight), quote_name(weight), quote_name(scale_inv), quote_name(scale));
  }
  return checkpoint.tensor(has_scale_inv ? scale_inv : scale);
}

void check_scales(const Checkpoint& checkpoint, const TensorInfo& scales, const TensorInfo& codes) {
  const std::vector<std::int64_t> wanted{scale_blocks(codes.shape[0]),
                                         scale_blocks(codes.shape[1])};
  if (scales.shape != wanted) {
    const bool transposed = scales.shape == std::vector{wanted[1], wanted[0]};
    fail(ErrorCode::kFormat, "{}: the weight {} needs scales of {}, one for each 128x128 block{}",
         describe(checkpoint, scales), shape_text(codes.shape), shape_text(wanted),
         transposed ? "; these are transposed" : "");
  }
  if (scales.dtype != DType::kF32 && scales.dtype != DType::kBf16 &&
      scales.dtype != DType::kF8E8m0) {
    fail(ErrorCode::kFormat, "{}: scales are F32, BF16 or F8_E8M0", describe(checkpoint, scales));
  }
}

// Element of a tensor of a known dtype, exactly.
float element(const TensorInfo& tensor, std::int64_t index) {
  const auto i = static_cast<std::size_t>(index);
  switch (tensor.dtype) {
    case DType::kF32:
      return load_element<float>(tensor.data, i);
    case DType::kBf16:
      return to_float(load_element<Bf16>(tensor.data, i));
    case DType::kF8E8m0:
      return to_float(load_element<E8m0>(tensor.data, i));
    default:
      fail(ErrorCode::kInternal, "tensor {}: no numbers are read from {}", quote_name(tensor.name),
           quote_name(tensor.dtype_name));
  }
}

std::vector<float> copy_scales(const Checkpoint& checkpoint, const TensorInfo& scales,
                               const Fp8Weight& weight) {
  const std::int64_t first = weight.depth_begin / kScaleBlock;
  const std::int64_t count = weight.depth / kScaleBlock;
  std::vector<float> copied;
  copied.reserve(static_cast<std::size_t>(scales.shape[0] * count));
  for (std::int64_t row = 0; row < scales.shape[0]; ++row) {
    for (std::int64_t block = first; block < first + count; ++block) {
      const float scale = element(scales, row * scales.shape[1] + block);
      if (!std::isfinite(scale) || scale <= 0.0f) {
        fail(ErrorCode::kFormat, "{}: the scale at [{}, {}] is {}, must be finite and positive",
             describe(checkpoint, scales), row, block, scale);
      }
      copied.push_back(scale);
    }
  }
  return copied;
}

bool is_nan(E4m3 code) { return (code.bits & 0x7F) == 0x7F; }

void check_codes(const Checkpoint& checkpoint, const TensorInfo& codes, const Fp8Weight& weight) {
  const auto count = std::ranges::count_if(weight.codes, is_nan);
  if (count == 0) return;
  const auto first = std::ranges::find_if(weight.codes, is_nan) - weight.codes.begin();
  fail(ErrorCode::kFormat, "{}: {} NaN in columns [{}, {}), the first at [{}, {}]",
       describe(checkpoint, codes), count, weight.depth_begin, weight.depth_begin + weight.depth,
       first / weight.depth, weight.depth_begin + first % weight.depth);
}

std::vector<E4m3> copy_codes(const TensorInfo& codes, const Fp8Weight& weight) {
  std::vector<E4m3> copied(static_cast<std::size_t>(weight.cols * weight.depth));
  for (std::int64_t row = 0; row < weight.cols; ++row) {
    std::memcpy(copied.data() + row * weight.depth,
                codes.data.data() + row * weight.total_depth + weight.depth_begin,
                static_cast<std::size_t>(weight.depth));
  }
  return copied;
}

// Divisors of `blocks` in rising order, as text.
std::string legal_worlds(std::int64_t blocks) {
  std::vector<std::int64_t> worlds;
  for (std::int64_t world = 1; world <= blocks / world; ++world) {
    if (blocks % world != 0) continue;
    worlds.push_back(world);
    if (world != blocks / world) worlds.push_back(blocks / world);
  }
  std::ranges::sort(worlds);
  return fmt::format("{}", fmt::join(worlds, " "));
}

}  // namespace

WeightView Fp8Weight::view() const {
  return {.codes = codes.data(),
          .cols = cols,
          .depth = depth,
          .row_stride = depth,
          .scales = scales.data(),
          .scale_row_stride = depth / kScaleBlock,
          .scale_block_stride = 1};
}

std::string why_not_divisible(std::int64_t total_depth, int world) {
  if (world < 1) return fmt::format("world size {}, must be at least 1", world);
  if (total_depth < 1 || total_depth % kScaleBlock != 0) {
    return fmt::format("K = {}, must be a positive multiple of the 128-column scale block",
                       total_depth);
  }
  const std::int64_t blocks = total_depth / kScaleBlock;
  if (blocks % world == 0) return "";
  const std::string slice =
      total_depth % world == 0
          ? fmt::format("slices of {} columns, which cut a 128-column scale block",
                        total_depth / world)
          : fmt::format(
                "no equal slices ({} columns and {} over), let alone whole 128-column blocks",
                total_depth / world, total_depth % world);
  return fmt::format("K = {} ({} blocks of 128) over {} ranks gives {}; legal world sizes: {}",
                     total_depth, blocks, world, slice, legal_worlds(blocks));
}

Fp8Weight read_weight_slice(const Checkpoint& checkpoint, std::string_view name, int rank,
                            int world) {
  const std::string_view base = without_ending(name);
  const TensorInfo codes = find_codes(checkpoint, fmt::format("{}{}", base, kWeightEnding));
  require_128_blocks(checkpoint, codes.name);
  const TensorInfo scales = find_scales(checkpoint, base);
  check_scales(checkpoint, scales, codes);
  const std::string refusal = why_not_divisible(codes.shape[1], world);
  if (!refusal.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: {}", describe(checkpoint, codes), refusal);
  }
  if (rank < 0 || rank >= world) {
    fail(ErrorCode::kInvalidArgument, "rank {}, must be from 0 to {}", rank, world - 1);
  }
  Fp8Weight weight;
  weight.cols = codes.shape[0];
  weight.total_depth = codes.shape[1];
  weight.depth = weight.total_depth / world;
  weight.depth_begin = rank * weight.depth;
  weight.scale_format = scales.dtype == DType::kF8E8m0 ? ScaleFormat::kUe8m0 : ScaleFormat::kFp32;
  weight.scales = copy_scales(checkpoint, scales, weight);
  weight.codes = copy_codes(codes, weight);
  check_codes(checkpoint, codes, weight);
  return weight;
}

std::vector<Bf16> read_bias(const Checkpoint& checkpoint, std::string_view name,
                            std::int64_t cols) {
  const std::string bias_name = fmt::format("{}.bias", without_ending(name));
  if (!checkpoint.contains(bias_name)) return {};
  const TensorInfo bias = checkpoint.tensor(bias_name);
  if (bias.shape != std::vector{cols} ||
      (bias.dtype != DType::kF32 && bias.dtype != DType::kBf16)) {
    fail(ErrorCode::kFormat, "{}: a bias of this weight is F32 or BF16 [{}]",
         describe(checkpoint, bias), cols);
  }
  std::vector<Bf16> values;
  values.reserve(static_cast<std::size_t>(cols));
  for (std::int64_t i = 0; i < cols; ++i) {
    values.push_back(to_bf16(element(bias, i)));
    if (!std::isfinite(to_float(values.back()))) {
      fail(ErrorCode::kFormat, "{}: the value at [{}] is {}, must be finite in bf16",
           describe(checkpoint, bias), i, element(bias, i));
    }
  }
  return values;
}

}  // namespace rowband
