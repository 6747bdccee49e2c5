// GemmAllReduce: out = sum over ranks of x_r * w_r^T (+ bias once), on every rank, in one fused
// call.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "rowband/comm/communicator.h"
#include "rowband/engines/engine.h"
#include "rowband/numerics/operands.h"
#include "rowband/plan/plan.h"
#include "rowband/trace/timeline.h"

namespace rowband {

struct GemmAllReduceOptions {
  std::int64_t max_rows = 0;  // capacity: calls have 0 <= M <= max_rows
  std::int64_t cols = 0;      // N, a multiple of 8
  std::int64_t depth = 0;     // K of one rank, a multiple of 128
  Wire wire = Wire::kBf16;
  Transport transport = Transport::kDirect;
  GatherScale gather_scale = GatherScale::kPerRowBlock;
  std::optional<int> chunks;  // per band at most; unset: what measured best on the engine
  int slots = 2;              // a result stays untouched through the next slots - 1 calls
  std::chrono::nanoseconds deadline = kDefaultDeadline;  // of every wait, construction's too
  bool self_test = true;                                 // at construction
  std::shared_ptr<const FaultHooks> faults;              // tests only
};

// A result: [rows, cols] bf16, dense.
struct Output {
  const Bf16* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// One rank's end of a group of W. Not thread-safe: one call at a time per rank, in the same order
// on all ranks.
class GemmAllReduce {
 public:
  // The spec that these options give on this engine in a world of `world`.
  static PlanSpec plan_spec(const EnginePlanner& planner, const GemmAllReduceOptions& options,
                            int world);
  // Bytes of symmetric memory that each rank will hold. Throws Error(kInvalidArgument).
  static std::int64_t window_bytes(const EnginePlanner& planner,
                                   const GemmAllReduceOptions& options, int world);

  // Collective. All ranks get the op, or all get the same error, with each failing rank's reason:
  // kInvalidArgument (nothing was allocated), kDisagreement (nothing was allocated), kOutOfMemory,
  // kCorrupted (the self-test: the transport does not move bytes), kDeadline, kPeerLost.
  // `comm` must outlive the op.
  static std::unique_ptr<GemmAllReduce> create(Communicator& comm, std::shared_ptr<Engine> engine,
                                               const GemmAllReduceOptions& options);
  ~GemmAllReduce();

  // "" when run() takes these operands; otherwise why not. This is run()'s own check: a call that
  // it accepts is executed, one that it refuses throws this text.
  std::string why_not(const ActivationView& x, const WeightView& w, const Bf16* out = nullptr,
                      const Bf16* bias = nullptr) const;
  // The same for the number of rows alone: equal on all ranks, so that a caller may decide by it.
  std::string why_not_rows(std::int64_t rows) const;
  bool supports(std::int64_t rows) const { return why_not_rows(rows).empty(); }

  // Collective. `bias` is null or [cols]; equal on all ranks. Without `out` the result lies in an
  // output slot of the window; with it, it is copied to [rows, cols] there. `out` may alias neither
  // operands nor the window. A rank that refuses its arguments tells its peers, so that none waits
  // for it; if all refuse alike the op stays usable. Throws Error(kInvalidArgument) with why_not;
  // (kDisagreement) naming the ranks' M; (kDeadline), (kPeerLost), (kPoisoned). A GPU engine queues
  // the call: what fails later shows in poison() once the stream has passed it, and at the next
  // call as kPoisoned. Its kernels see no peer's death, only that the deadline has passed. A call
  // that was captured into a graph keeps its slot in every replay: among eager calls its result, or
  // theirs, may last no longer than to the next one. Give `out` there. All ranks capture alike.
  Output run(const ActivationView& x, const WeightView& w, const Bf16* bias = nullptr,
             Bf16* out = nullptr, Timeline* timeline = nullptr, void* stream = nullptr);

  // In place of run() when this rank cannot make the call: it counts as a refused one. Local,
  // unless the call before was refused too: then it waits until the peers have begun that one, or,
  // queued on a GPU engine's `stream`, that stream does.
  void refuse(void* stream = nullptr);

  // Collective. Calls with known answers that depend on rank, row and call, checked to the bit on
  // every rank; run by create() unless switched off. Throws Error(kCorrupted) on every rank alike.
  void self_test();

  // Ends the transports and lets the window go. Local and idempotent; later calls throw. A rank may
  // close while a peer still finishes its last call.
  void close();

  const PlanSpec& spec() const { return spec_; }
  // True when [begin, begin + bytes) touches this rank's part of the window; false once closed.
  bool in_window(const void* begin, std::int64_t bytes) const;
  std::int64_t window_bytes() const;
  std::int64_t calls() const;  // begun, construction's included
  std::string poison() const;  // why every call fails from now on; "" while healthy

 private:
  GemmAllReduce(Communicator& comm, std::shared_ptr<Engine> engine,
                const GemmAllReduceOptions& options);
  struct SelfTestMemory;
  std::string check_one_self_test_call(std::int64_t rows, SelfTestMemory& memory, int round);

  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  const GemmAllReduceOptions options_;
  PlanSpec spec_;
  std::unique_ptr<FusedExecutor> fused_;
};

}  // namespace rowband
