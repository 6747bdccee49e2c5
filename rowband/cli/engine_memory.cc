#include "rowband/cli/engine_memory.h"

#include <algorithm>

namespace rowband::cli {
namespace {

template <typename T>
std::vector<T> download(Engine& engine, const T* from, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  engine.download(values.data(), from, values.size() * sizeof(T), nullptr);
  return values;
}

}  // namespace

EngineActivations to_engine(Engine& engine, const Bf16* x, std::int64_t rows, std::int64_t depth,
                            std::int64_t x_row_stride) {
  if (engine.on_host()) return {x, x_row_stride, nullptr};
  std::vector<Bf16> dense(static_cast<std::size_t>(rows * depth));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(x + row * x_row_stride, depth, dense.data() + row * depth);
  }
  auto memory = engine.upload(dense.data(), dense.size() * sizeof(Bf16));
  return {static_cast<const Bf16*>(memory.get()), depth, memory};
}

Output to_host(Engine& engine, const Output& y, std::vector<Bf16>& storage) {
  if (engine.on_host()) return y;
  storage = download(engine, y.data, y.rows * y.cols);
  return {storage.data(), y.rows, y.cols};
}

HostWeight::HostWeight(Engine& engine, const WeightView& w) : view_(w) {
  if (engine.on_host()) return;
  codes_ = download(engine, w.codes, (w.cols - 1) * w.row_stride + w.depth);
  scales_ = download(engine, w.scales,
                     (scale_blocks(w.cols) - 1) * w.scale_row_stride +
                         (w.depth / kScaleBlock - 1) * w.scale_block_stride + 1);
  view_.codes = codes_.data();
  view_.scales = scales_.data();
}

}  // namespace rowband::cli
