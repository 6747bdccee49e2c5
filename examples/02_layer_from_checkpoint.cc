// 02: a row-parallel linear layer from a checkpoint in DeepSeek's block-scale fp8 format.
//
// Run     build/examples/02_layer_from_checkpoint
// Prints  what served each call and how far the result is from a float64 reference on the same fp8
//         operands: what rounding to bf16 costs. At W=2 the fused path and the base path (GEMM,
//         then all-reduce) give the same bits. The library logs the declined call, too:
//
//           fused path: relative L2 2.4e-03 against float64, served 1, declined 0
//           base path:  relative L2 2.4e-03 against float64, served 0, declined 1 (disabled)
//           fused and base path: bits equal
//
// What can go wrong
//   format             the tensor is not in the file (near names are listed), its scales are
//                      missing or have another shape, or it holds NaN.
//   invalid argument   K cannot be cut into W slices of whole 128-blocks: the legal W are listed.
//   a declined call    is no error: the base path serves it. The counters and the log say why.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "rowband/comm/threads.h"
#include "rowband/io/checkpoint.h"
#include "rowband/io/make_checkpoint.h"
#include "rowband/layer/row_parallel_linear.h"
#include "rowband/numerics/quantize.h"
#include "rowband/numerics/reference.h"

namespace {

using rowband::Bf16;

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 192, kCols = 384, kDepth = 1024;  // M, N, K of all ranks together
constexpr const char* kTensor = "model.layers.0.self_attn.o_proj";

// Removes the checkpoint's directory however the program ends.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "rowband_example_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;  // a destructor must not throw
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// [kRows, kDepth], values in -1..1 that repeat nowhere near.
std::vector<Bf16> make_input() {
  std::vector<Bf16> x(kRows * kDepth);
  std::uint32_t state = 1;
  for (Bf16& value : x) {
    state = state * 1664525u + 1013904223u;
    value = rowband::to_bf16(static_cast<float>(state >> 8) * 0x1p-23f - 1.0f);
  }
  return x;
}

// The sum over all ranks' slices in float64, on the quantised operands.
std::vector<double> reference(const rowband::Checkpoint& checkpoint, const std::vector<Bf16>& x) {
  const rowband::Fp8Weight w = rowband::read_weight_slice(checkpoint, kTensor, 0, 1);
  const std::int64_t blocks = rowband::scale_blocks(kDepth);
  std::vector<rowband::E4m3> codes(x.size());
  std::vector<float> scales(kRows * blocks);
  rowband::quantize_activations(x.data(), kRows, kDepth, kDepth, rowband::ScaleFormat::kFp32,
                                codes.data(), kDepth, scales.data());
  const rowband::ActivationView xs[] = {
      {codes.data(), kRows, kDepth, kDepth, scales.data(), blocks, 1}};
  const rowband::WeightView ws[] = {w.view()};
  std::vector<std::int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  return rowband::reference_rows(xs, ws, nullptr, rows, 1);
}

struct Served {
  std::vector<Bf16> y;
  rowband::LayerCounters counters;
};

// One call of a layer that fuses or does not, on every rank; rank 0's result.
Served forward(const rowband::Checkpoint& checkpoint, const std::vector<Bf16>& x, bool fuse) {
  Served served;
  rowband::run_ranks(kRanks, [&](rowband::Communicator& comm) {
    rowband::LayerOptions options;
    options.policy.enabled = fuse;
    options.policy.min_rows = 0;  // a call as small as this one would be declined by default
    options.max_rows = kRows;
    rowband::EngineOptions engine_options;
    engine_options.local_ranks = kRanks;  // so that the ranks deal the cores out among them
    engine_options.local_rank = comm.rank();
    auto engine = rowband::make_engine(rowband::EngineKind::kHost, comm.rank(), engine_options);
    const auto layer = rowband::RowParallelLinear::create(
        comm, std::move(engine),
        rowband::read_weight_slice(checkpoint, kTensor, comm.rank(), kRanks),
        rowband::read_bias(checkpoint, kTensor, kCols), options);
    // This rank's columns of x lie depth_begin into every row.
    const rowband::Output y = layer->forward(x.data() + layer->weight().depth_begin, kRows, kDepth);
    if (comm.rank() != 0) return;
    served.y.assign(y.data, y.data + y.rows * y.cols);
    served.counters = layer->counters();
  });
  return served;
}

void report(const char* path, const Served& served, const std::vector<double>& want) {
  std::string reason;
  std::int64_t declined = 0;
  for (int i = 0; i < rowband::kDecisions; ++i) {
    const auto decision = static_cast<rowband::Decision>(i);
    if (decision == rowband::Decision::kFuse || served.counters.of(decision) == 0) continue;
    declined += served.counters.of(decision);
    reason = " (" + std::string(rowband::decision_name(decision)) + ")";
  }
  std::printf("%s relative L2 %.1e against float64, served %ld, declined %ld%s\n", path,
              rowband::relative_l2(served.y, want),
              static_cast<long>(served.counters.of(rowband::Decision::kFuse)),
              static_cast<long>(declined), reason.c_str());
}

void run() {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "model.safetensors";
  rowband::make_checkpoint(file, {.name = kTensor, .cols = kCols, .depth = kDepth, .seed = 7});
  const auto checkpoint = rowband::Checkpoint::open(file);

  const std::vector<Bf16> x = make_input();
  const std::vector<double> want = reference(checkpoint, x);
  const Served fused = forward(checkpoint, x, true), base = forward(checkpoint, x, false);
  report("fused path:", fused, want);
  report("base path: ", base, want);
  std::printf("fused and base path: bits %s\n", fused.y == base.y ? "equal" : "differ");
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "02_layer_from_checkpoint: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
