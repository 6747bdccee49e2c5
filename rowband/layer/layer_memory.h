// What a layer keeps in its engine's memory: weight and bias, the quantised activations of a call,
// results that do not lie in the window.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "rowband/engines/engine.h"
#include "rowband/io/checkpoint.h"
#include "rowband/layer/engine_buffer.h"

namespace rowband {

class LayerMemory {
 public:
  // Takes no memory of the engine yet.
  LayerMemory(std::shared_ptr<Engine> engine, Fp8Weight weight, std::vector<Bf16> bias);

  struct Room {
    std::int64_t max_rows = 0;   // of a call's activations
    std::int64_t slot_rows = 0;  // of a result here
    int slots = 1;
    bool scratch = false;  // room for one more result
  };
  // On the host nothing is taken but what calls need, when they do. A GPU engine takes it all, and
  // the weight and bias with it. Throws Error(kOutOfMemory).
  void take(const Room& room);

  // Of a GPU engine that has taken them: without codes and scales.
  const Fp8Weight& weight() const { return weight_; }
  const std::vector<Bf16>& host_bias() const { return bias_; }

  // In the engine's memory, after take().
  const WeightView& weight_view() const { return weight_view_; }
  const Bf16* bias() const { return bias_view_; }  // [N], or null

  // Local; queued on `stream`. The view is valid until the next call.
  ActivationView quantize(const Bf16* x, std::int64_t rows, std::int64_t x_row_stride,
                          ScaleFormat format, void* stream);

  // `count` elements, the slots in turn.
  Bf16* next_slot(std::int64_t count);
  Bf16* scratch(std::int64_t count);
  // True when `count` elements from `begin` on touch a slot.
  bool in_a_slot(const Bf16* begin, std::int64_t count) const;

 private:
  void take_weight();

  const std::shared_ptr<Engine> engine_;
  Fp8Weight weight_;
  std::vector<Bf16> bias_;
  WeightView weight_view_;
  const Bf16* bias_view_ = nullptr;
  std::vector<std::shared_ptr<const void>> held_;  // weight and bias on a GPU
  EngineBuffer<E4m3> codes_;                       // grow to the largest call
  EngineBuffer<float> scales_;
  std::vector<EngineBuffer<Bf16>> slots_;
  std::size_t next_slot_ = 0;
  EngineBuffer<Bf16> scratch_;
};

}  // namespace rowband
