#include "rowband/cli/layer_input.h"

#include <fmt/ranges.h>

#include "rowband/base/fail.h"
#include "rowband/cli/random_operands.h"

namespace rowband::cli {
namespace {

// The tensor to take when none is named: the checkpoint's only fp8 matrix.
std::string only_fp8_matrix(const Checkpoint& checkpoint, const std::string& path) {
  std::vector<std::string> found;
  for (const std::string& name : checkpoint.names()) {
    const TensorInfo tensor = checkpoint.tensor(name);
    if (tensor.dtype == DType::kF8E4m3 && tensor.shape.size() == 2) found.push_back(name);
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) fail(ErrorCode::kFormat, "{}: holds no F8_E4M3 matrix", path);
  constexpr std::size_t kShown = 8;
  const std::string more =
      found.size() > kShown ? fmt::format(" and {} more", found.size() - kShown) : "";
  found.resize(std::min(found.size(), kShown));
  fail(ErrorCode::kInvalidArgument, "{}: holds several F8_E4M3 matrices, --tensor picks one: {}{}",
       path, fmt::join(found, ", "), more);
}

void refuse_shape_flag(const char* flag, bool given, const std::string& file) {
  if (!given) return;
  fail(ErrorCode::kInvalidArgument, "{} is for random operands; here it is read from {}", flag,
       file);
}

void require_at_least(const char* flag, std::int64_t value, std::int64_t least) {
  if (value < least) {
    fail(ErrorCode::kInvalidArgument, "{} {}: must be at least {}", flag, value, least);
  }
}

}  // namespace

void InputFlags::add_to(CLI::App& command) {
  command
      .add_option(
          "--checkpoint", checkpoint,
          "Weight from a .safetensors file, an index.json or a directory; random without it")
      ->type_name("PATH");
  command.add_option("--tensor", tensor, "The weight's name; not needed when there is only one")
      ->type_name("NAME");
  command
      .add_option("--input", input,
                  "Activations [M, K of all ranks], .npy or .safetensors, bf16 or f32")
      ->type_name("FILE");
  command.add_option("--input-tensor", input_tensor, "Their name in a .safetensors file")
      ->type_name("NAME");
  command
      .add_option("--rows", rows,
                  fmt::format("M of random activations ({})", LayerInput::kDefaultRows))
      ->type_name("M");
  command
      .add_option("--cols", cols,
                  fmt::format("N of a random weight ({})", LayerInput::kDefaultCols))
      ->type_name("N");
  command
      .add_option("--depth", depth,
                  fmt::format("K per rank of a random weight ({})", LayerInput::kDefaultDepth))
      ->type_name("K");
  command.add_option("--seed", seed, "Of random operands")
      ->capture_default_str()
      ->type_name("NUMBER");
}

LayerInput::LayerInput(const InputFlags& flags, int world) : flags_(flags), world_(world) {
  if (flags_.checkpoint.empty()) {
    if (!flags_.tensor.empty()) {
      fail(ErrorCode::kInvalidArgument, "--tensor {}: needs --checkpoint", flags_.tensor);
    }
    cols_ = flags_.cols.value_or(kDefaultCols);
    require_at_least("--cols", cols_, 1);
    require_at_least("--depth", flags_.depth.value_or(kDefaultDepth), 1);
    if (__builtin_mul_overflow(flags_.depth.value_or(kDefaultDepth), world, &total_depth_)) {
      fail(ErrorCode::kInvalidArgument, "--depth {} of {} ranks: does not fit 64 bits",
           *flags_.depth, world);
    }
  } else {
    open_checkpoint();
  }
  if (const auto why = why_not_divisible(total_depth_, world_); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}: {}", weight_source(), why);
  }
  if (flags_.input.empty()) {
    rows_ = flags_.rows.value_or(kDefaultRows);
    require_at_least("--rows", rows_, 0);
  } else {
    read_activations();
  }
}

void LayerInput::open_checkpoint() {
  refuse_shape_flag("--cols", flags_.cols.has_value(), flags_.checkpoint);
  refuse_shape_flag("--depth", flags_.depth.has_value(), flags_.checkpoint);
  checkpoint_ = Checkpoint::open(flags_.checkpoint);
  tensor_ =
      flags_.tensor.empty() ? only_fp8_matrix(*checkpoint_, flags_.checkpoint) : flags_.tensor;
  if (!tensor_.ends_with(".weight")) tensor_ += ".weight";
  const TensorInfo info = checkpoint_->tensor(tensor_);
  if (info.shape.size() != 2) {
    fail(ErrorCode::kFormat, "{}: a weight is a matrix [N, K], this is {}", weight_source(),
         shape_text(info.shape));
  }
  cols_ = info.shape[0];
  total_depth_ = info.shape[1];
}

void LayerInput::read_activations() {
  refuse_shape_flag("--rows", flags_.rows.has_value(), flags_.input);
  matrix_ = read_matrix(flags_.input, flags_.input_tensor);
  rows_ = matrix_->rows;
  if (matrix_->cols != total_depth_) {
    fail(
        ErrorCode::kInvalidArgument,
        "{}: the activations are [{}, {}], the weight is [{}, {}] ({}): their last dimensions must "
        "be equal",
        flags_.input, matrix_->rows, matrix_->cols, cols_, total_depth_, weight_source());
  }
}

std::string LayerInput::weight_source() const {
  if (!checkpoint_) return fmt::format("random weight, seed {}", flags_.seed);
  return fmt::format("{}: {}", checkpoint_->file_of(tensor_), tensor_);
}

std::string LayerInput::activation_source() const {
  return matrix_ ? flags_.input : fmt::format("random activations, seed {}", flags_.seed);
}

std::vector<std::string> LayerInput::notes() const {
  return checkpoint_ ? checkpoint_->notes() : std::vector<std::string>();
}

Fp8Weight LayerInput::weight(int rank) const {
  if (checkpoint_) return read_weight_slice(*checkpoint_, tensor_, rank, world_);
  return random_weight_slice(flags_.seed, cols_, total_depth_, rank, world_);
}

std::vector<Bf16> LayerInput::bias() const {
  return checkpoint_ ? read_bias(*checkpoint_, tensor_, cols_) : std::vector<Bf16>();
}

ActivationSlice LayerInput::activations(int rank) const {
  ActivationSlice slice;
  if (matrix_) {
    slice.data = matrix_->values.data() + rank * depth();
    slice.row_stride = total_depth_;
    return slice;
  }
  slice.own = random_activations(flags_.seed, 0, rows_, rank * depth(), depth());
  slice.data = slice.own.data();
  slice.row_stride = depth();
  return slice;
}

}  // namespace rowband::cli
