// Operands for tests: seeded random ones and constant ones whose products are known.
#pragma once

#include <random>
#include <vector>

#include "rowband/numerics/operands.h"
#include "rowband/numerics/quantize.h"

namespace rowband {

// bf16 values, normally distributed, times `spread`.
inline std::vector<Bf16> random_bf16(std::int64_t count, std::uint64_t seed, float spread = 1.0f) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<Bf16> values(static_cast<std::size_t>(count));
  for (Bf16& value : values) value = to_bf16(normal(engine));
  return values;
}

struct RandomActivations {
  std::int64_t rows, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;  // [rows, depth / 128]

  RandomActivations(std::int64_t m, std::int64_t k, std::uint64_t seed)
      : rows(m), depth(k), codes(m * k), scales(m * scale_blocks(k)) {
    const auto x = random_bf16(m * k, seed);
    quantize_activations(x.data(), m, k, k, ScaleFormat::kFp32, codes.data(), k, scales.data());
  }
  ActivationView view() const {
    return {codes.data(), rows, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

struct RandomWeight {
  std::int64_t cols, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;  // [scale_blocks(cols), depth / 128]

  RandomWeight(std::int64_t n, std::int64_t k, std::uint64_t seed,
               ScaleFormat format = ScaleFormat::kFp32)
      : cols(n), depth(k), codes(n * k), scales(scale_blocks(n) * scale_blocks(k)) {
    const auto w = random_bf16(n * k, seed);
    std::vector<float> wide(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) wide[i] = to_float(w[i]) / 32;
    quantize_weights(wide.data(), n, k, k, format, codes.data(), scales.data());
  }
  WeightView view() const {
    return {codes.data(), cols, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

// Every code is e4m3(value), every scale 1.
struct ConstantActivations {
  std::int64_t rows, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;

  ConstantActivations(std::int64_t m, std::int64_t k, float value)
      : rows(m), depth(k), codes(m * k, to_e4m3(value)), scales(m * scale_blocks(k), 1.0f) {}
  ActivationView view() const {
    return {codes.data(), rows, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

struct ConstantWeight {
  std::int64_t cols, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;

  ConstantWeight(std::int64_t n, std::int64_t k, float value)
      : cols(n),
        depth(k),
        codes(n * k, to_e4m3(value)),
        scales(scale_blocks(n) * scale_blocks(k), 1.0f) {}
  WeightView view() const {
    return {codes.data(), cols, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

}  // namespace rowband
