#include "rowband/io/make_checkpoint.h"

#include <cmath>
#include <span>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/io/fp8_weight_writer.h"
#include "rowband/io/quote_name.h"

namespace rowband {
namespace {

// Number `index` of a sequence of bell-shaped numbers, a pure function of both: any part of a
// tensor can be made alone, in any order. Integers until the last product, so that the bits do not
// depend on a math library.
class BellCurve {
 public:
  BellCurve(std::uint64_t seed, std::uint64_t stream, double deviation)
      : key_(mix(mix(seed) + stream)), factor_(static_cast<float>(deviation / kSumDeviation)) {}

  float operator()(std::uint64_t index) const {
    const std::uint64_t pairs = sum_of_pairs(mix(key_ + 2 * index * kStep)) +
                                sum_of_pairs(mix(key_ + (2 * index + 1) * kStep));
    const auto sum = static_cast<std::int32_t>((pairs & 0xFFFFFFFFu) + (pairs >> 32));
    return static_cast<float>(sum - kSumMean) * factor_;  // |sum - mean| < 2^24: exact in fp32
  }

 private:
  // The sum of eight uniform 16-bit numbers, close to normal out to 4 deviations.
  static constexpr std::int32_t kSumMean = 8 * 65535 / 2;
  static constexpr double kSumDeviation = 53509.92;  // sqrt(8 (2^32 - 1) / 12)

  // SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
  static constexpr std::uint64_t kStep = 0x9E3779B97F4A7C15u;
  static std::uint64_t mix(std::uint64_t z) {
    z += kStep;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // Adds the four 16-bit lanes two by two, into two 32-bit lanes.
  static std::uint64_t sum_of_pairs(std::uint64_t lanes) {
    constexpr std::uint64_t kLow = 0x0000FFFF0000FFFFu;
    return (lanes & kLow) + ((lanes >> 16) & kLow);
  }

  std::uint64_t key_;
  float factor_;
};

void check(const RandomLinear& linear) {
  std::int64_t count = 0;
  if (linear.name.empty() || linear.cols < 1 || linear.depth < 1 ||
      __builtin_mul_overflow(linear.cols, linear.depth, &count)) {
    fail(ErrorCode::kInvalidArgument,
         "a linear {} of [N, K] = [{}, {}]: needs a name, and N and K of at least 1 whose product "
         "fits 64 bits",
         quote_name(linear.name), linear.cols, linear.depth);
  }
}

std::vector<Bf16> make_bias(const RandomLinear& linear) {
  const BellCurve curve(linear.seed, 1, 1.0);
  std::vector<Bf16> bias(static_cast<std::size_t>(linear.cols));
  for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = to_bf16(curve(i));
  return bias;
}

}  // namespace

void make_checkpoint(const std::filesystem::path& destination, const RandomLinear& linear) {
  check(linear);
  const auto pair = fp8_weight_specs(linear.name, linear.cols, linear.depth, linear.scale_format);
  std::vector<TensorSpec> specs(pair.begin(), pair.end());
  if (linear.bias) {
    specs.push_back({.name = linear.name + ".bias",
                     .dtype_name = "BF16",
                     .shape = {linear.cols},
                     .bytes = static_cast<std::uint64_t>(linear.cols) * sizeof(Bf16)});
  }
  SafetensorsWriter writer(destination, specs);
  const BellCurve curve(linear.seed, 0, 1.0 / std::sqrt(static_cast<double>(linear.depth)));
  write_fp8_weight(writer, 0, linear.cols, linear.depth, linear.scale_format,
                   [&](std::int64_t first, std::int64_t rows, float* out) {
                     const auto begin = static_cast<std::uint64_t>(first * linear.depth);
                     const auto count = static_cast<std::uint64_t>(rows * linear.depth);
                     for (std::uint64_t i = 0; i < count; ++i) out[i] = curve(begin + i);
                   });
  if (linear.bias) {
    const std::vector<Bf16> bias = make_bias(linear);
    writer.write(2, 0, std::as_bytes(std::span(bias)));
  }
  writer.finish();
}

}  // namespace rowband
