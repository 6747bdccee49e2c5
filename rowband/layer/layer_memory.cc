#include "rowband/layer/layer_memory.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "rowband/numerics/quantize.h"

namespace rowband {

LayerMemory::LayerMemory(std::shared_ptr<Engine> engine, Fp8Weight weight, std::vector<Bf16> bias)
    : engine_(std::move(engine)), weight_(std::move(weight)), bias_(std::move(bias)) {}

void LayerMemory::take(const Room& room) {
  slots_.resize(static_cast<std::size_t>(room.slots));
  if (engine_->on_host()) {
    weight_view_ = weight_.view();
    bias_view_ = bias_.empty() ? nullptr : bias_.data();
    return;
  }
  take_weight();
  codes_.reserve(*engine_, room.max_rows * weight_.depth);
  scales_.reserve(*engine_, room.max_rows * (weight_.depth / kScaleBlock));
  for (auto& slot : slots_) slot.reserve(*engine_, room.slot_rows * weight_.cols);
  if (room.scratch) scratch_.reserve(*engine_, room.max_rows * weight_.cols);
}

// A row of scales begins at a multiple of 16 bytes there.
void LayerMemory::take_weight() {
  const WeightView from = weight_.view();
  const std::int64_t blocks = weight_.depth / kScaleBlock, row_blocks = scale_blocks(weight_.cols);
  const std::int64_t stride = (blocks + 3) / 4 * 4;
  std::vector<float> scales(static_cast<std::size_t>(row_blocks * stride));
  for (std::int64_t row = 0; row < row_blocks; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      scales[static_cast<std::size_t>(row * stride + block)] =
          from.scales[row * from.scale_row_stride + block * from.scale_block_stride];
    }
  }
  const auto take = [&]<typename T>(const std::vector<T>& values) {
    held_.push_back(engine_->upload(values.data(), values.size() * sizeof(T)));
    return static_cast<const T*>(held_.back().get());
  };
  weight_view_ = {
      take(weight_.codes), weight_.cols, weight_.depth, weight_.depth, take(scales), stride, 1};
  if (!bias_.empty()) bias_view_ = take(bias_);
  weight_.codes = {};
  weight_.scales = {};
}

ActivationView LayerMemory::quantize(const Bf16* x, std::int64_t rows, std::int64_t x_row_stride,
                                     ScaleFormat format, void* stream) {
  codes_.reserve(*engine_, rows * weight_.depth);
  scales_.reserve(*engine_, rows * (weight_.depth / kScaleBlock));
  return engine_->quantize(x, rows, weight_.depth, x_row_stride, format, codes_.data(),
                           scales_.data(), stream);
}

Bf16* LayerMemory::next_slot(std::int64_t count) {
  EngineBuffer<Bf16>& slot = slots_[next_slot_++ % slots_.size()];
  slot.reserve(*engine_, count);
  return slot.data();
}

Bf16* LayerMemory::scratch(std::int64_t count) {
  scratch_.reserve(*engine_, count);
  return scratch_.data();
}

bool LayerMemory::in_a_slot(const Bf16* begin, std::int64_t count) const {
  const std::less<const Bf16*> before;
  return std::ranges::any_of(slots_, [&](const EngineBuffer<Bf16>& slot) {
    return before(begin, slot.data() + slot.size()) && before(slot.data(), begin + count);
  });
}

}  // namespace rowband
