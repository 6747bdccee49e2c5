#include "rowband/engines/host/engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/engines/host/epilogue.h"
#include "rowband/engines/host/fused.h"
#include "rowband/engines/host/machine.h"
#include "rowband/engines/host/tile_gemm.h"
#include "rowband/engines/host/worker_pool.h"
#include "rowband/numerics/float_environment.h"

namespace rowband::host {
namespace {

constexpr std::int64_t kQuantizeRows =
    16;  // per task: enough to hide the hand-out, few enough to balance

constexpr std::align_val_t kAlignment{256};

class CommunicatorAllReduce final : public AllReduce {
 public:
  explicit CommunicatorAllReduce(Communicator& comm)
      : comm_(comm), description_(fmt::format("all-reduce of the {} communicator", comm.kind())) {}

  void run(Bf16* data, std::int64_t count, Deadline deadline, void*) override {
    comm_.all_reduce(data, count, deadline);
  }
  std::string_view description() const override { return description_; }

 private:
  Communicator& comm_;
  const std::string description_;
};

int pick_threads(const EngineOptions& options) {
  if (options.threads < 0) {
    fail(ErrorCode::kInvalidArgument, "threads={}: must be 0 (the cores' share) or more",
         options.threads);
  }
  if (options.threads > 0) return options.threads;
  return std::max(1, allowed_cores() / std::max(1, options.local_ranks));
}

class HostPlanner final : public EnginePlanner {
 public:
  PlanSpec with_tiles(PlanSpec spec) const override {
    // 256 x 256 sums fill a quarter of a 1 MiB L2 and spread the widening of both operands over 256
    // uses; bands as short as 32 rows keep every rank busy in small calls. docs/performance.md.
    spec.tile_rows = kMaxTileRows;
    spec.min_tile_rows = 32;
    spec.tile_cols = kMaxTileCols;
    return spec;
  }

  int best_chunks(Transport, Wire) const override { return 4; }

  std::string why_not_served(const PlanSpec&) const override { return ""; }

  std::int64_t window_bytes(const PlanSpec& spec) const override {
    return plan_window(spec, Window::control_bytes(spec.world, spec.chunks)).bytes;
  }
  int tiles_at_once() const override { return 0; }
};

class HostEngine final : public Engine {
 public:
  HostEngine(int rank, const EngineOptions& options)
      : Engine(make_host_planner()),
        rank_(rank),
        gemm_(find_tile_gemm(options.gemm_kernel)),
        pool_(pick_threads(options)),
        scratch_(static_cast<std::size_t>(pool_.threads())) {}

  std::string_view name() const override { return "host"; }

  std::string description() const override {
    return fmt::format("host engine, GEMM kernel {}, {} thread{} per rank", gemm_.name,
                       pool_.threads(), pool_.threads() == 1 ? "" : "s");
  }

  std::string why_no_room(std::int64_t window_bytes, int world,
                          const FaultHooks* faults) const override {
    const std::int64_t available = faults != nullptr && faults->available_bytes
                                       ? *faults->available_bytes
                                       : available_memory();
    const std::int64_t needed = window_bytes * world;
    if (needed <= available) return "";
    return fmt::format("the window needs {} bytes ({} ranks x {}), {} bytes are free", needed,
                       world, window_bytes, available);
  }

  std::unique_ptr<FusedExecutor> make_fused(Communicator& comm, const PlanSpec& spec,
                                            const FusedOptions& options) override {
    return std::make_unique<HostFused>(comm, spec, options, gemm_, pool_, scratch_);
  }

  void gemm(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out,
            Timeline* timeline, void* stream) override;
  ActivationView quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                          std::int64_t x_row_stride, ScaleFormat format, E4m3* codes, float* scales,
                          void* stream) override;
  void add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                void* stream) override;
  std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Deadline) override {
    return std::make_unique<CommunicatorAllReduce>(comm);
  }

  bool on_host() const override { return true; }
  int device() const override { return -1; }
  std::string why_not_reachable(const void*) const override { return ""; }
  std::size_t output_alignment() const override { return alignof(Bf16); }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    // Pages that no call touches take no room.
    return {::operator new(bytes, kAlignment), [](void* p) { ::operator delete(p, kAlignment); }};
  }
  void synchronize(void*) override {}
  void finish() override {}

  std::shared_ptr<const void> upload(const void* host, std::size_t bytes) override {
    const auto* first = static_cast<const std::byte*>(host);
    auto copied = std::make_shared<std::vector<std::byte>>(first, first + bytes);
    return {copied, copied->data()};
  }
  void download(void* host, const void* from, std::size_t bytes, void* stream) override {
    copy(host, from, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, void*) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

 private:
  const int rank_;
  const TileGemm gemm_;
  WorkerPool pool_;
  std::vector<TileScratch> scratch_;
};

void HostEngine::gemm(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out,
                      Timeline* timeline, void*) {
  if (x.rows == 0) return;
  const PlanSpec spec =
      with_tiles({.max_rows = x.rows, .cols = w.cols, .depth = w.depth, .world = 1});
  const CallPlan plan(spec, x.rows);
  const Bf16* no_peers[] = {nullptr};
  std::atomic<std::int64_t> next{0};
  pool_.run([&](int worker) {
    Recorder lane(timeline, rank_, fmt::format("worker {}", worker));
    for (std::int64_t i = next.fetch_add(1); i < plan.tiles(); i = next.fetch_add(1)) {
      const Tile tile = plan.tile(0, i);
      const auto label = [&] {
        return fmt::format("rows {}..{} cols {}..{}", tile.rows.begin, tile.rows.end - 1,
                           tile.cols.begin, tile.cols.end - 1);
      };
      lane.measure(Activity::kGemm, label, [&] {
        TileScratch& scratch = scratch_[static_cast<std::size_t>(worker)];
        gemm_.run(x, w, tile.rows, tile.cols, scratch);
        store_reduced(scratch, tile.rows.size(), tile.cols.size(), no_peers, 0,
                      bias == nullptr ? nullptr : bias + tile.cols.begin,
                      out + tile.rows.begin * w.cols + tile.cols.begin, w.cols);
      });
    }
  });
}

ActivationView HostEngine::quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                                    std::int64_t x_row_stride, ScaleFormat format, E4m3* codes,
                                    float* scales, void*) {
  if (depth % kScaleBlock != 0) {
    fail(ErrorCode::kInvalidArgument, "depth={}: must be a multiple of {}", depth, kScaleBlock);
  }
  std::atomic<std::int64_t> next{0};
  pool_.run([&](int) {
    for (std::int64_t row = next.fetch_add(kQuantizeRows); row < rows;
         row = next.fetch_add(kQuantizeRows)) {
      quantize_rows(x + row * x_row_stride, std::min(kQuantizeRows, rows - row), depth,
                    x_row_stride, format == ScaleFormat::kUe8m0, codes + row * depth,
                    scales + row * (depth / kScaleBlock));
    }
  });
  return {codes, rows, depth, depth, scales, depth / kScaleBlock, 1};
}

void HostEngine::add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                          void*) {
  const ScopedFloatEnvironment ieee;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t col = 0; col < cols; ++col, ++out) {
      *out = to_bf16(to_float(*out) + to_float(bias[col]));
    }
  }
}

}  // namespace

std::unique_ptr<EnginePlanner> make_host_planner() { return std::make_unique<HostPlanner>(); }

std::unique_ptr<Engine> make_host_engine(int rank, const EngineOptions& options) {
  return std::make_unique<HostEngine>(rank, options);
}

}  // namespace rowband::host
