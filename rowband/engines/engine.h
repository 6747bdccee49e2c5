// The seam between the op and the hardware. An engine belongs to one rank; it multiplies,
// quantises, and makes the executor of the fused call. Engines never include one another.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "rowband/comm/communicator.h"
#include "rowband/numerics/operands.h"
#include "rowband/numerics/quantize.h"
#include "rowband/plan/plan.h"
#include "rowband/trace/timeline.h"

namespace rowband {

struct FaultHooks;  // engines/fault_hooks.h: for tests

struct EngineOptions {
  int threads = 0;      // per rank; 0: the cores this process may use, dealt over `local_ranks`
  int local_ranks = 1;  // how many ranks share those cores
  int local_rank = 0;
  // "" takes the best. Host: by name, see tile_gemm.h. cuda: "wgmma", its own, or "cublaslt", which
  // falls back to "wgmma" where cuBLASLt does not serve a shape, and whose calls on two streams run
  // one after the other (where one is captured into a graph, the caller sees to that); of gemm()
  // alone, not of fused calls.
  std::string gemm_kernel;
  int device = 0;        // GPU engines: the CUDA device; ranks of one device share its SMs
  int device_ranks = 1;  // GPU engines: how many ranks share it; the same for all ranks of an op
};

struct FusedOptions {
  std::chrono::nanoseconds deadline = kDefaultDeadline;  // of every wait in a call
  std::shared_ptr<const FaultHooks> faults;
};

// One fused call on one rank. Shapes have been checked against the plan by the op.
struct FusedCall {
  ActivationView x;
  WeightView w;
  const Bf16* bias = nullptr;    // [cols] or null
  Timeline* timeline = nullptr;  // where to record, or null
  void* stream = nullptr;        // GPU engines: the cudaStream_t the call is queued on
};

// Runs fused calls against one symmetric window. Calls are collective, in the same order on all
// ranks, one at a time per rank.
class FusedExecutor {
 public:
  virtual ~FusedExecutor() = default;

  // Returns [rows, cols] bf16, dense, in an output slot of the window: untouched through the next
  // slots - 1 calls. A GPU engine queues the call on its stream and returns at once; what it would
  // throw shows in poison() once the stream has passed the call, and at the next call; a call that
  // was captured into a graph keeps its slot in every replay. A call on another stream than the
  // last one's, which must still live, runs after that one; where either was captured, the caller
  // orders them. Throws Error naming peer, leg and chunk; from then on every call throws
  // Error(kPoisoned) with that reason, on every rank.
  virtual const Bf16* run(const FusedCall& call) = 0;

  // "" or what of these operands this engine cannot take; to be asked before run().
  virtual std::string why_not(const FusedCall&) const { return {}; }

  // In place of run(), when this rank's arguments are bad: the call counts, and peers that did
  // begin it fail at once instead of waiting. If every rank refuses alike, nothing is lost. After
  // a refused call it waits until the peers have begun that one, and may throw as run() does. A GPU
  // engine queues it on `stream`, which must be that of the calls.
  virtual void refuse(void* stream = nullptr) = 0;

  virtual const WindowLayout& window() const = 0;
  virtual std::int64_t calls() const = 0;  // begun so far, construction's included
  // True when [begin, begin + bytes) touches this rank's part of the window.
  virtual bool in_window(const void* begin, std::int64_t bytes) const = 0;
  // The reason of the failure, "" while healthy.
  virtual std::string poison() const = 0;
};

// The base path's all-reduce of one group, on memory of an engine.
class AllReduce {
 public:
  virtual ~AllReduce() = default;
  // Collective. Sums `count` bf16 values of every rank in place. Throws as
  // Communicator::all_reduce, or queues the sum on `stream`: then what it would throw shows in
  // poison() once the stream has passed the call, and at the next call.
  virtual void run(Bf16* data, std::int64_t count, Deadline deadline, void* stream) = 0;
  virtual std::string poison() const { return ""; }
  virtual std::string_view description() const = 0;  // who sums, for logs and reports
};

// What an engine knows of a spec: arithmetic, which needs none of its hardware.
class EnginePlanner {
 public:
  virtual ~EnginePlanner() = default;

  // Fills in what is this engine's own: tile shapes, what they cost where that decides between
  // them, and how the fp8 wire's scales lie.
  virtual PlanSpec with_tiles(PlanSpec spec) const = 0;

  // "" or why this engine does not serve this spec, which can be planned.
  virtual std::string why_not_served(const PlanSpec& spec) const = 0;

  // Bytes of symmetric memory that each rank holds for this spec. Throws Error(kInvalidArgument).
  virtual std::int64_t window_bytes(const PlanSpec& spec) const = 0;

  // Tiles that a rank works on at one time; 0 where that is not fixed.
  virtual int tiles_at_once() const = 0;

  // Chunks per band that were measured best, where the caller does not say.
  virtual int best_chunks(Transport transport, Wire wire) const = 0;
};

class Engine : public EnginePlanner {
 public:
  PlanSpec with_tiles(PlanSpec spec) const final { return planner_->with_tiles(spec); }
  std::string why_not_served(const PlanSpec& spec) const final {
    return planner_->why_not_served(spec);
  }
  std::int64_t window_bytes(const PlanSpec& spec) const final {
    return planner_->window_bytes(spec);
  }
  int tiles_at_once() const final { return planner_->tiles_at_once(); }
  int best_chunks(Transport transport, Wire wire) const final {
    return planner_->best_chunks(transport, wire);
  }

  virtual std::string_view name() const = 0;    // "host", "cuda"
  virtual std::string description() const = 0;  // kernel and threads, for logs and reports

  // "" or why this machine cannot hold `window_bytes` per rank now, with needed and free bytes.
  virtual std::string why_no_room(std::int64_t window_bytes, int world,
                                  const FaultHooks* faults) const = 0;

  // Collective. The executor must not outlive the engine or the communicator.
  virtual std::unique_ptr<FusedExecutor> make_fused(Communicator& comm, const PlanSpec& spec,
                                                    const FusedOptions& options) = 0;

  // Local. out = x * w^T (+ bias) as bf16 [rows, cols], dense.
  virtual void gemm(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out,
                    Timeline* timeline, void* stream = nullptr) = 0;

  // Local. Dense codes [rows, depth] and rows * (depth / 128) scales, bit-equal to
  // quantize_activations; depth a multiple of 128. A GPU wants codes at a multiple of 16 bytes; it
  // throws Error(kInvalidArgument) otherwise. The view says where each scale lies: where the
  // engine's GEMM reads it best.
  virtual ActivationView quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                                  std::int64_t x_row_stride, ScaleFormat format, E4m3* codes,
                                  float* scales, void* stream = nullptr) = 0;

  // Local. Adds bias [cols] to each row of out [rows, cols]: fp32 adds, rounded to bf16.
  virtual void add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                        void* stream = nullptr) = 0;

  // Collective. The all-reduce must not outlive the engine or the communicator.
  virtual std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Deadline deadline) = 0;

  // True when its memory is the host's: anybody reads and writes it, and calls have ended when they
  // return. Else it is a device's, calls are queued on streams, and what follows is needed.
  virtual bool on_host() const = 0;
  virtual int device() const = 0;  // the CUDA device; -1 on the host
  // "" or why calls of this engine can't work on memory at `address`.
  virtual std::string why_not_reachable(const void* address) const = 0;
  // Of gemm's `out`, in bytes.
  virtual std::size_t output_alignment() const = 0;

  // Local. Memory that calls of this engine read and write, 256-aligned, of unknown contents. May
  // throw Error(kOutOfMemory). It must not be let go of while a queued call works on it.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  // Local. Returns once everything that was queued on `stream` has ended; for finish(), on every
  // stream, and every call of the ranks that share the device.
  virtual void synchronize(void* stream) = 0;
  virtual void finish() = 0;

  // Local. Memory that calls of this engine can read; a copy of `bytes` at `host`.
  virtual std::shared_ptr<const void> upload(const void* host, std::size_t bytes) = 0;
  // Local. Copies what calls of this engine have written: to the host, once `stream` has come
  // there; and to memory of the engine from anywhere, in the order of `stream` (from the host's,
  // which must stay as it is until then).
  virtual void download(void* host, const void* from, std::size_t bytes, void* stream) = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes, void* stream) = 0;

 protected:
  explicit Engine(std::unique_ptr<const EnginePlanner> planner) : planner_(std::move(planner)) {}

 private:
  const std::unique_ptr<const EnginePlanner> planner_;
};

enum class EngineKind { kHost, kCuda };
std::string_view engine_name(EngineKind kind);   // "host", "cuda"
EngineKind parse_engine(std::string_view text);  // Error(kInvalidArgument) listing legal names

// kCuda where this build has it and this process sees a Hopper GPU, else kHost. Asks the driver
// once; a process that did so can't fork children that use a GPU.
EngineKind default_engine();

// Throws Error(kUnavailable) when this build has no such engine, or this machine no GPU or driver.
std::unique_ptr<Engine> make_engine(EngineKind kind, int rank, const EngineOptions& options);

struct PlannerOptions {
  int multiprocessors = 132;  // GPU engines: of the device; an H100 SXM or H200 has 132
  int device_ranks = 1;       // GPU engines: how many ranks share it
};
// Needs no hardware. Throws Error(kUnavailable) when this build has no such engine.
std::unique_ptr<EnginePlanner> make_planner(EngineKind kind, const PlannerOptions& options);

}  // namespace rowband
