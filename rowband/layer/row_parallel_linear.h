// RowParallelLinear: what an engine puts where a row-parallel linear layer meets an all-reduce.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rowband/comm/communicator.h"
#include "rowband/engines/engine.h"
#include "rowband/io/checkpoint.h"
#include "rowband/layer/layer_memory.h"
#include "rowband/layer/policy.h"
#include "rowband/op/gemm_all_reduce.h"

namespace rowband {

struct LayerOptions {
  std::int64_t max_rows = 16384;  // capacity of the fused path
  FusionPolicy policy;
  Wire wire = Wire::kBf16;
  Transport transport = Transport::kDirect;
  GatherScale gather_scale = GatherScale::kPerRowBlock;
  std::optional<int> chunks;  // unset: what measured best on the engine
  int slots = 2;              // of either path
  std::chrono::nanoseconds deadline = kDefaultDeadline;
  ScaleFormat activation_scales = ScaleFormat::kFp32;
  bool debug_check = false;  // run both paths on every call and log how they differ
  bool shape_log = false;    // count the shapes seen; the histogram is logged at close
  std::shared_ptr<const FaultHooks> faults;  // tests only

  // The defaults, changed by ROWBAND_FUSE, ROWBAND_FP8_GATHER, ROWBAND_TRANSPORT,
  // ROWBAND_GATHER_SCALE, ROWBAND_CHUNKS, ROWBAND_MAX_ROWS, ROWBAND_MIN_ROWS, ROWBAND_MIN_FILL,
  // ROWBAND_DEADLINE, ROWBAND_DEBUG_CHECK and ROWBAND_SHAPE_LOG.
  static LayerOptions from_environment();
};

// What was served how; readable at any time from the layer's thread.
struct LayerCounters {
  std::array<std::int64_t, kDecisions> calls{};  // by Decision; [kFuse] counts the served ones
  struct Shape {
    std::int64_t fused = 0;
    std::int64_t declined = 0;
  };
  std::map<std::int64_t, Shape> shapes;  // by M; filled with shape_log

  std::int64_t of(Decision decision) const { return calls[static_cast<std::size_t>(decision)]; }
};

class RowParallelLinear {
 public:
  // Collective. Takes this rank's slice of the weight; bias is empty or [N], equal on all ranks.
  // When the policy is enabled but the fused op cannot be made, that is logged with its reason and
  // every call is declined, on all ranks alike; other errors are thrown on every rank. `comm` must
  // outlive the layer. A GPU engine takes weight and bias into its memory, and room for max_rows
  // rows, so that no call of so many allocates. Throws Error(kOutOfMemory).
  static std::unique_ptr<RowParallelLinear> create(Communicator& comm,
                                                   std::shared_ptr<Engine> engine, Fp8Weight weight,
                                                   std::vector<Bf16> bias,
                                                   const LayerOptions& options);
  ~RowParallelLinear();

  // Collective. x is [rows, K] bf16 with `x_row_stride` elements between rows: the columns of this
  // rank's slice. The result stays untouched through the next slots - 1 calls; with `out`, it is
  // written to [rows, N] there instead, which may not alias x or an earlier result.
  // Throws Error as GemmAllReduce::run does; after a failed call there is no local fallback.
  //
  // On a GPU engine x and out are device memory and the call is queued on `stream` (a cudaStream_t,
  // the same for all calls; null: the engine's own) without waiting for it, so that it can be
  // captured into a graph; but with a timeline, with debug_check, or where a declined call's
  // all-reduce goes through the host it does wait. A captured call keeps its result's place in
  // every replay, so that among eager calls a result may last no longer than to the next one: give
  // `out` there. All ranks capture alike. A failed call's results are not to be used: see finish().
  Output forward(const Bf16* x, std::int64_t rows, std::int64_t x_row_stride, Bf16* out = nullptr,
                 Timeline* timeline = nullptr, void* stream = nullptr);

  // Local. Returns once the calls queued on `stream` have ended; throws Error(kPoisoned) with the
  // reason when one of them failed. On the host engine they have ended anyway.
  void finish(void* stream = nullptr);

  Verdict verdict(std::int64_t rows) const;  // what forward would do with so many rows
  const LayerCounters& counters() const { return counters_; }
  const GemmAllReduce* fused() const { return op_.get(); }  // null when there is none
  // A GPU engine has taken the codes and scales: they are empty here, and weight_view() leads to
  // them.
  const Fp8Weight& weight() const { return memory_.weight(); }
  const WeightView& weight_view() const { return memory_.weight_view(); }
  const AllReduce& all_reduce() const { return *all_reduce_; }  // of the declined calls

  // Local and idempotent; logs the shape histogram when asked for.
  void close();

 private:
  RowParallelLinear(Communicator& comm, std::shared_ptr<Engine> engine, Fp8Weight weight,
                    std::vector<Bf16> bias, const LayerOptions& options);
  void make_op();
  LayerMemory::Room room() const;
  std::string why_bad_arguments(const Bf16* x, std::int64_t rows, std::int64_t x_row_stride,
                                const Bf16* out) const;
  Output base_path(const ActivationView& x, Bf16* out, Timeline* timeline, void* stream);
  Output checked_fused(const ActivationView& x, Bf16* out, Timeline* timeline, void* stream);
  std::vector<Bf16> fetch(const Output& y, void* stream);
  void count(const Verdict& verdict, std::int64_t rows);

  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  LayerMemory memory_;
  const PlanSpec spec_;
  const LayerOptions options_;  // with the policy's min_rows
  std::unique_ptr<GemmAllReduce> op_;
  std::string unavailable_;  // why there is no op although the policy wants one
  std::unique_ptr<AllReduce> all_reduce_;
  LayerCounters counters_;
  bool closed_ = false;
};

}  // namespace rowband
