// Operands and results between the host and an engine. On the host engine nothing is copied.
#pragma once

#include <memory>
#include <vector>

#include "rowband/engines/engine.h"
#include "rowband/op/gemm_all_reduce.h"

namespace rowband::cli {

// Activations where calls of an engine read them.
struct EngineActivations {
  const Bf16* data = nullptr;
  std::int64_t row_stride = 0;
  std::shared_ptr<const void> memory;  // of a GPU engine; else `x` must stay
};
EngineActivations to_engine(Engine& engine, const Bf16* x, std::int64_t rows, std::int64_t depth,
                            std::int64_t x_row_stride);

// The result of calls that have ended, readable here: the engine's own memory, or `storage`.
Output to_host(Engine& engine, const Output& y, std::vector<Bf16>& storage);

// A weight that an engine holds, readable here.
class HostWeight {
 public:
  HostWeight(Engine& engine, const WeightView& w);
  const WeightView& view() const { return view_; }

 private:
  WeightView view_;
  std::vector<E4m3> codes_;
  std::vector<float> scales_;
};

}  // namespace rowband::cli
