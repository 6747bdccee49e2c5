// The proof that bytes move: calls whose answers are known to the bit and differ by rank, row and
// call, so that stale, missing or misplaced bytes cannot pass.
#include <algorithm>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/numerics/quantize.h"
#include "rowband/op/gemm_all_reduce.h"

namespace rowband {
namespace {

constexpr std::int64_t kDepth = kScaleBlock;  // one block: the transport is on trial, not the GEMM

int mixed(std::int64_t row, int of, int below) {
  std::uint64_t h = static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15u +
                    static_cast<std::uint64_t>(of) * 0xD1B54A32D192ED03u;
  h = (h ^ (h >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<int>((h >> 33) % static_cast<std::uint64_t>(below));
}
// 1, 2 or 3: 64 ranks' sum times kDepth times 2 is exact in bf16. Mixed, so that no sum over the
// ranks repeats from one call to the next. Times a power of two that is the same on all ranks for
// 16 rows of a call, for engines that tell of exponents apart from the values.
float activation(int rank, std::int64_t row, int round) {
  const int power = 1 << mixed(row / 16, 8191 * round + 7, 8);
  return static_cast<float>((1 + mixed(row, rank * 131 + round * 8191 + 1, 3)) * power) / 16;
}
int weight(std::int64_t col) { return 1 + static_cast<int>(col % 2); }

}  // namespace

void GemmAllReduce::self_test() {
  const std::vector<E4m3> codes = [&] {
    std::vector<E4m3> all(static_cast<std::size_t>(spec_.cols * kDepth));
    for (std::int64_t col = 0; col < spec_.cols; ++col) {
      std::fill_n(all.begin() + col * kDepth, kDepth, to_e4m3(static_cast<float>(weight(col))));
    }
    return all;
  }();
  const std::vector<float> scales(static_cast<std::size_t>(scale_blocks(spec_.cols)), 1.0f);
  const auto w_codes = engine_->upload(codes.data(), codes.size());
  const auto w_scales = engine_->upload(scales.data(), scales.size() * sizeof(float));
  const WeightView w{static_cast<const E4m3*>(w_codes.get()),   spec_.cols, kDepth, kDepth,
                     static_cast<const float*>(w_scales.get()), 1,          1};

  // Every chunk of every band, then a short call, and every output slot at least once.
  const std::int64_t all_chunks = spec_.world * spec_.chunks * spec_.tile_rows;
  const std::int64_t few = spec_.world * spec_.min_tile_rows + 1;
  std::string failure;
  for (int round = 0; round < std::max(3, spec_.slots + 1) && failure.empty(); ++round) {
    const std::int64_t rows = std::min(spec_.max_rows, round % 2 == 0 ? few : all_chunks);
    failure = check_one_self_test_call(rows, w, round);
    try {
      agree_on_success(comm_,
                       fmt::format("self-test of transport {}, wire {}",
                                   transport_name(spec_.transport), wire_name(spec_.wire)),
                       failure, ErrorCode::kCorrupted, Deadline::after(options_.deadline));
    } catch (const Error&) {
      close();
      throw;
    }
  }
}

std::string GemmAllReduce::check_one_self_test_call(std::int64_t rows, const WeightView& w,
                                                    int round) {
  std::vector<E4m3> codes(static_cast<std::size_t>(rows * kDepth));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill_n(codes.begin() + row * kDepth, kDepth,
                to_e4m3(activation(comm_.rank(), row, round)));
  }
  const std::vector<float> scales(static_cast<std::size_t>(rows), 1.0f);
  const auto x_codes = engine_->upload(codes.data(), codes.size());
  const auto x_scales = engine_->upload(scales.data(), scales.size() * sizeof(float));
  const ActivationView x{static_cast<const E4m3*>(x_codes.get()),   rows, kDepth, kDepth,
                         static_cast<const float*>(x_scales.get()), 1,    1};
  std::vector<Bf16> got(static_cast<std::size_t>(rows * spec_.cols));
  try {
    const Bf16* result = fused_->run({x, w, nullptr, nullptr, nullptr});
    engine_->download(got.data(), result, got.size() * sizeof(Bf16), nullptr);
    if (const std::string reason = fused_->poison(); !reason.empty()) {
      return fmt::format("call {} failed: {}", round + 1, reason);
    }
  } catch (const Error& error) {
    return fmt::format("call {} failed: {}", round + 1, error.what());
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (int rank = 0; rank < spec_.world; ++rank) sum += activation(rank, row, round);
    const Bf16 want[2] = {to_bf16(sum * kDepth), to_bf16(2 * sum * kDepth)};
    for (std::int64_t col = 0; col < spec_.cols; ++col) {
      const Bf16 value = got[static_cast<std::size_t>(row * spec_.cols + col)];
      if (value == want[col % 2]) continue;
      return fmt::format(
          "call {}, M={}: row {} column {} is {}, should be {}: the transport did not move "
          "these bytes, or moved them too late",
          round + 1, rows, row, col, to_float(value), to_float(want[col % 2]));
    }
  }
  return "";
}

}  // namespace rowband
