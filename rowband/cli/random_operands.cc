#include "rowband/cli/random_operands.h"

#include <array>
#include <cmath>

#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

// The finaliser of SplitMix64 (Steele, Lea, Flood, 2014): close bits in, unrelated bits out.
constexpr std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

constexpr std::uint64_t key_of(std::uint64_t seed, std::uint64_t stream, std::int64_t row) {
  return mix(mix(mix(seed) + stream) + static_cast<std::uint64_t>(row));
}

// In [0.5, 1.5).
float spread(std::uint64_t bits) { return 0.5f + static_cast<float>(bits >> 40) * 0x1p-24f; }

// The sum of four uniform 16-bit numbers, scaled to mean 0 and deviation 1.
float bell(std::uint64_t bits) {
  const auto lane = [bits](int i) { return static_cast<int>((bits >> (16 * i)) & 0xFFFF); };
  const int sum = lane(0) + lane(1) + lane(2) + lane(3) - 2 * 65535;
  return static_cast<float>(sum) * (1.0f / 37837.2f);
}

// Codes at the quantiles of a logistic distribution, which is bell-shaped: a uniform byte picks
// one.
struct CodeTable {
  std::array<E4m3, 256> codes;
  double deviation = 0;  // of the codes' values

  CodeTable() {
    const double largest = std::log(511.0);  // of the quantiles
    double squares = 0;
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const double p = (static_cast<double>(i) + 0.5) / 256;
      codes[i] = to_e4m3(static_cast<float>(std::log(p / (1 - p)) / largest * kE4m3Max));
      squares += std::pow(to_float(codes[i]), 2);
    }
    deviation = std::sqrt(squares / 256);
  }
};

const CodeTable& code_table() {
  static const CodeTable table;
  return table;
}

constexpr std::uint64_t kWeightStream = 0, kScaleStream = 1, kActivationStream = 2;

Fp8Weight empty_slice(std::int64_t cols, std::int64_t total_depth, int rank, int world) {
  Fp8Weight weight;
  weight.cols = cols;
  weight.total_depth = total_depth;
  weight.depth = total_depth / world;
  weight.depth_begin = rank * weight.depth;
  return weight;
}

void fill_codes(std::uint64_t seed, Fp8Weight& weight) {
  const CodeTable& table = code_table();
  weight.codes.resize(static_cast<std::size_t>(weight.cols * weight.depth));
  for (std::int64_t col = 0; col < weight.cols; ++col) {
    const std::uint64_t key = key_of(seed, kWeightStream, col);
    E4m3* row = weight.codes.data() + col * weight.depth;
    for (std::int64_t k = 0; k < weight.depth; k += 8) {
      std::uint64_t bits = mix(key + static_cast<std::uint64_t>(weight.depth_begin + k));
      for (int i = 0; i < 8; ++i, bits >>= 8) row[k + i] = table.codes[bits & 0xFF];
    }
  }
}

void fill_scales(std::uint64_t seed, Fp8Weight& weight) {
  const double unit =
      1 / (code_table().deviation * std::sqrt(static_cast<double>(weight.total_depth)));
  const std::int64_t first = weight.depth_begin / kScaleBlock;
  for (std::int64_t row = 0; row < scale_blocks(weight.cols); ++row) {
    const std::uint64_t key = key_of(seed, kScaleStream, row);
    for (std::int64_t block = first; block < first + weight.depth / kScaleBlock; ++block) {
      weight.scales.push_back(static_cast<float>(unit) *
                              spread(mix(key + static_cast<std::uint64_t>(block))));
    }
  }
}

}  // namespace

std::vector<Bf16> random_activations(std::uint64_t seed, int set, std::int64_t rows,
                                     std::int64_t depth_begin, std::int64_t depth) {
  std::vector<Bf16> x(static_cast<std::size_t>(rows * depth));
  const std::uint64_t stream = kActivationStream + static_cast<std::uint64_t>(set);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint64_t key = key_of(seed, stream, row);
    const float magnitude = spread(mix(key));
    Bf16* out = x.data() + row * depth;
    for (std::int64_t k = 0; k < depth; ++k) {
      out[k] =
          to_bf16(bell(mix(key + static_cast<std::uint64_t>(depth_begin + k + 1))) * magnitude);
    }
  }
  return x;
}

Fp8Weight random_weight_slice(std::uint64_t seed, std::int64_t cols, std::int64_t total_depth,
                              int rank, int world) {
  Fp8Weight weight = empty_slice(cols, total_depth, rank, world);
  fill_codes(seed, weight);
  fill_scales(seed, weight);
  return weight;
}

Fp8Weight constant_weight_slice(float value, std::int64_t cols, std::int64_t total_depth, int rank,
                                int world) {
  Fp8Weight weight = empty_slice(cols, total_depth, rank, world);
  weight.codes.assign(static_cast<std::size_t>(cols * weight.depth), to_e4m3(value));
  weight.scales.assign(static_cast<std::size_t>(scale_blocks(cols) * (weight.depth / kScaleBlock)),
                       1.0f);
  return weight;
}

}  // namespace rowband::cli
