#include "rowband/cli/gpu_operands.h"

#include <algorithm>
#include <random>

#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

constexpr std::int64_t kPastL2 = std::int64_t{160} << 20;  // bytes; an H200 has 60 MiB of L2
constexpr std::int64_t kFewestSets = 2, kMostSets = 12;
constexpr std::size_t kPool = std::size_t{32} << 20;

std::int64_t padded_blocks(std::int64_t depth) { return (depth / kScaleBlock + 3) / 4 * 4; }

// Random bytes, made once: device memory is filled from any place in it.
template <typename T>
class Pool {
 public:
  template <typename Draw>
  Pool(std::uint64_t seed, Draw draw) : random_(seed), values_(kPool / sizeof(T)) {
    for (T& value : values_) value = draw(random_);
  }
  std::shared_ptr<void> fill(Engine& engine, std::int64_t count) {
    auto memory = engine.allocate(static_cast<std::size_t>(count) * sizeof(T));
    auto* to = static_cast<T*>(memory.get());
    std::int64_t from = static_cast<std::int64_t>(random_() % (values_.size() / 2)) / 64 * 64;
    while (count > 0) {
      const std::int64_t piece = std::min(count, std::ssize(values_) - from);
      engine.copy(to, values_.data() + from, static_cast<std::size_t>(piece) * sizeof(T), nullptr);
      to += piece;
      count -= piece;
      from = 0;
    }
    engine.synchronize(nullptr);
    return memory;
  }

 private:
  std::mt19937_64 random_;
  std::vector<T> values_;
};

// No NaN, and no code above 128, so that no sum leaves bf16's range.
E4m3 random_code(std::mt19937_64& random) {
  const auto bits = static_cast<std::uint8_t>(random());
  return {(bits & 0x7F) > 0x70 ? std::uint8_t{0x30} : bits};
}

float random_scale(std::mt19937_64& random) {
  return 0.001f * (1 + static_cast<float>(random() % 256) / 256);
}

}  // namespace

GpuOperands::GpuOperands(Engine& engine, std::int64_t max_rows, std::int64_t cols,
                         std::int64_t depth, std::uint64_t seed)
    : cols_(cols), depth_(depth) {
  Pool<E4m3> codes(seed, random_code);
  Pool<float> scales(seed + 1, random_scale);
  const std::int64_t sets = std::clamp(kPastL2 / (cols * depth), kFewestSets, kMostSets);
  for (std::int64_t i = 0; i < sets; ++i) {
    sets_.push_back({codes.fill(engine, max_rows * depth), codes.fill(engine, cols * depth),
                     scales.fill(engine, max_rows * (depth / kScaleBlock)),
                     scales.fill(engine, scale_blocks(cols) * padded_blocks(depth))});
  }
}

int GpuOperands::sets(std::int64_t rows) const {
  const std::int64_t bytes = (rows + cols_) * depth_;
  return static_cast<int>(
      std::clamp((kPastL2 + bytes - 1) / bytes, kFewestSets, std::ssize(sets_)));
}

ActivationView GpuOperands::activations(int set, std::int64_t rows) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  return {static_cast<const E4m3*>(s.x.get()),         rows, depth_, depth_,
          static_cast<const float*>(s.x_scales.get()), 1,    rows};
}

WeightView GpuOperands::weight(int set) const {
  const Set& s = sets_[static_cast<std::size_t>(set)];
  return {static_cast<const E4m3*>(s.w.get()),
          cols_,
          depth_,
          depth_,
          static_cast<const float*>(s.w_scales.get()),
          padded_blocks(depth_),
          1};
}

}  // namespace rowband::cli
