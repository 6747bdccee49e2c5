// The proof that bytes move: calls whose answers are known to the bit and differ by rank, row and
// call, so that stale, missing or misplaced bytes cannot pass.
#include <algorithm>
#include <optional>
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

// Taken before the first call: of what fails here a rank must tell its peers before they wait for
// it in a call.
struct GemmAllReduce::SelfTestMemory {
  SelfTestMemory(Engine& engine, std::int64_t rows, std::int64_t cols) {
    std::vector<E4m3> w(static_cast<std::size_t>(cols * kDepth));
    for (std::int64_t col = 0; col < cols; ++col) {
      std::fill_n(w.begin() + col * kDepth, kDepth, to_e4m3(static_cast<float>(weight(col))));
    }
    const std::vector<float> ones(static_cast<std::size_t>(std::max(rows, scale_blocks(cols))), 1);
    w_codes = engine.upload(w.data(), w.size());
    scales = engine.upload(ones.data(), ones.size() * sizeof(float));
    codes.resize(static_cast<std::size_t>(rows * kDepth));
    x_codes = engine.allocate(codes.size());
    got.resize(static_cast<std::size_t>(rows * cols));
  }

  std::shared_ptr<const void> w_codes, scales;
  std::shared_ptr<void> x_codes;
  std::vector<E4m3> codes;  // x_codes' copy on the host
  std::vector<Bf16> got;
};

void GemmAllReduce::self_test() {
  // Every chunk of every band, then a short call, and every output slot at least once.
  const std::int64_t all_chunks = spec_.world * spec_.chunks * spec_.tile_rows;
  const std::int64_t few = spec_.world * spec_.min_tile_rows + 1;
  const auto agree = [&](const std::string& why, ErrorCode code) {
    try {
      agree_on_success(comm_,
                       fmt::format("self-test of transport {}, wire {}",
                                   transport_name(spec_.transport), wire_name(spec_.wire)),
                       why, code, Deadline::after(options_.deadline));
    } catch (const Error&) {
      close();
      throw;
    }
  };
  std::optional<SelfTestMemory> memory;
  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  try {
    memory.emplace(*engine_, std::min(spec_.max_rows, std::max(few, all_chunks)), spec_.cols);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  } catch (const std::exception& error) {
    failure = error.what();
  }
  agree(failure, code);
  for (int round = 0; round < std::max(3, spec_.slots + 1); ++round) {
    const std::int64_t rows = std::min(spec_.max_rows, round % 2 == 0 ? few : all_chunks);
    agree(check_one_self_test_call(rows, *memory, round), ErrorCode::kCorrupted);
  }
}

std::string GemmAllReduce::check_one_self_test_call(std::int64_t rows, SelfTestMemory& memory,
                                                    int round) {
  const auto* const scales = static_cast<const float*>(memory.scales.get());
  const WeightView w{
      static_cast<const E4m3*>(memory.w_codes.get()), spec_.cols, kDepth, kDepth, scales, 1, 1};
  const ActivationView x{
      static_cast<const E4m3*>(memory.x_codes.get()), rows, kDepth, kDepth, scales, 1, 1};
  for (std::int64_t row = 0; row < rows; ++row) {
    std::fill_n(memory.codes.begin() + row * kDepth, kDepth,
                to_e4m3(activation(comm_.rank(), row, round)));
  }
  try {
    engine_->copy(memory.x_codes.get(), memory.codes.data(),
                  static_cast<std::size_t>(rows * kDepth), nullptr);
    const Bf16* result = fused_->run({x, w, nullptr, nullptr, nullptr});
    engine_->download(memory.got.data(), result,
                      static_cast<std::size_t>(rows * spec_.cols) * sizeof(Bf16), nullptr);
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
      const Bf16 value = memory.got[static_cast<std::size_t>(row * spec_.cols + col)];
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
