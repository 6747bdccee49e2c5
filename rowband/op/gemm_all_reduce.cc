#include "rowband/op/gemm_all_reduce.h"

#include <fmt/ranges.h>

#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband {
namespace {

std::string seconds(std::chrono::nanoseconds duration) {
  return fmt::format("{} s", std::chrono::duration<double>(duration).count());
}

// Everything that must be equal on all ranks for their calls to fit together.
std::vector<NamedValue> agreed_values(const Engine& engine, const PlanSpec& s,
                                      const GemmAllReduceOptions& o) {
  return {{"engine", std::string(engine.name())},
          {"max_rows", std::to_string(s.max_rows)},
          {"N", std::to_string(s.cols)},
          {"K per rank", std::to_string(s.depth)},
          {"wire", std::string(wire_name(s.wire))},
          {"transport", std::string(transport_name(s.transport))},
          {"gather scale", std::string(gather_scale_name(s.gather_scale))},
          {"chunks", std::to_string(s.chunks)},
          {"slots", std::to_string(s.slots)},
          {"tile rows", fmt::format("{}..{}", s.min_tile_rows, s.tile_rows)},
          {"tile columns", std::to_string(s.tile_cols)},
          {"workers", std::to_string(s.cost.workers)},
          {"tile costs", fmt::format("{} us and {} us, {} bytes/us, {} us", s.cost.tile_us,
                                     fmt::join(s.cost.block_us, ", "), s.cost.link_bytes_per_us,
                                     s.cost.encode_us)},
          {"packed chunks", std::to_string(s.packed_chunks)},
          {"deadline", seconds(o.deadline)},
          {"self-test", o.self_test ? "on" : "off"}};
}

std::string why_bad_options(const Engine& engine, const PlanSpec& spec,
                            const GemmAllReduceOptions& options) {
  if (options.deadline <= std::chrono::nanoseconds(0)) {
    return fmt::format("deadline={}: must be more than 0 s", seconds(options.deadline));
  }
  if (auto why = why_not_expressible(spec); !why.empty()) return why;
  return engine.why_not_served(spec);
}

// Collective: also of a rank that cannot even ask.
void agree_on_room(Communicator& comm, const Engine& engine, std::int64_t window_bytes,
                   const FaultHooks* faults, Deadline deadline) {
  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  try {
    failure = engine.why_no_room(window_bytes, comm.size(), faults);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "room for the symmetric window", failure, code, deadline);
}

bool overlap(const void* a, std::int64_t a_bytes, const void* b, std::int64_t b_bytes) {
  const auto *a0 = static_cast<const std::byte*>(a), *b0 = static_cast<const std::byte*>(b);
  const std::less<> before;
  return before(a0, b0 + b_bytes) && before(b0, a0 + a_bytes);
}

}  // namespace

PlanSpec GemmAllReduce::plan_spec(const EnginePlanner& planner, const GemmAllReduceOptions& options,
                                  int world) {
  PlanSpec spec = planner.with_tiles(
      {.max_rows = options.max_rows,
       .cols = options.cols,
       .depth = options.depth,
       .world = world,
       .wire = options.wire,
       .transport = options.transport,
       .gather_scale = options.gather_scale,
       .chunks = options.chunks.value_or(planner.best_chunks(options.transport, options.wire)),
       .slots = options.slots});
  if (options.faults && options.faults->tile_rows) {
    spec.tile_rows = spec.min_tile_rows = *options.faults->tile_rows;
  }
  return spec;
}

std::int64_t GemmAllReduce::window_bytes(const EnginePlanner& planner,
                                         const GemmAllReduceOptions& options, int world) {
  return planner.window_bytes(plan_spec(planner, options, world));
}

GemmAllReduce::GemmAllReduce(Communicator& comm, std::shared_ptr<Engine> engine,
                             const GemmAllReduceOptions& options)
    : comm_(comm),
      engine_(std::move(engine)),
      options_(options),
      spec_(plan_spec(*engine_, options, comm.size())) {}

GemmAllReduce::~GemmAllReduce() { close(); }

std::unique_ptr<GemmAllReduce> GemmAllReduce::create(Communicator& comm,
                                                     std::shared_ptr<Engine> engine,
                                                     const GemmAllReduceOptions& options) {
  // A deadline that is refused below must not cut the agreement on that short.
  const bool usable = options.deadline > std::chrono::nanoseconds(0);
  const auto deadline = [&] {
    return Deadline::after(usable ? options.deadline : std::chrono::nanoseconds(kDefaultDeadline));
  };
  std::unique_ptr<GemmAllReduce> op(new GemmAllReduce(comm, std::move(engine), options));
  // Nothing is allocated before every rank has passed both gates with the same values.
  agree_on_success(comm, "GemmAllReduce options", why_bad_options(*op->engine_, op->spec_, options),
                   ErrorCode::kInvalidArgument, deadline());
  agree_on_values(comm, "GemmAllReduce options", agreed_values(*op->engine_, op->spec_, options),
                  deadline());
  agree_on_room(comm, *op->engine_, op->window_bytes(), options.faults.get(), deadline());
  op->fused_ = op->engine_->make_fused(comm, op->spec_, {options.deadline, options.faults});
  if (options.self_test) op->self_test();
  return op;
}

void GemmAllReduce::close() { fused_.reset(); }

void GemmAllReduce::refuse(void* stream) {
  if (fused_) fused_->refuse(stream);
}

std::int64_t GemmAllReduce::window_bytes() const { return engine_->window_bytes(spec_); }
std::int64_t GemmAllReduce::calls() const { return fused_ ? fused_->calls() : 0; }
std::string GemmAllReduce::poison() const {
  return fused_ ? fused_->poison() : "the op has been closed";
}

bool GemmAllReduce::in_window(const void* begin, std::int64_t bytes) const {
  return fused_ && fused_->in_window(begin, bytes);
}

std::string GemmAllReduce::why_not_rows(std::int64_t rows) const {
  if (rows >= 0 && rows <= spec_.max_rows) return "";
  return fmt::format("M={} rows: this op takes 0..{} (max_rows)", rows, spec_.max_rows);
}

std::string GemmAllReduce::why_not(const ActivationView& x, const WeightView& w, const Bf16* out,
                                   const Bf16* bias) const {
  if (!fused_) return "the op has been closed";
  if (auto why = why_not_rows(x.rows); !why.empty()) return why;
  if (auto why = why_not_valid(x); !why.empty()) return why;
  if (auto why = why_not_valid(w); !why.empty()) return why;
  if (x.depth != spec_.depth || w.depth != spec_.depth || w.cols != spec_.cols) {
    return fmt::format("x is [{}, {}] and w is [{}, {}]: this op was made for K={} and w [{}, {}]",
                       x.rows, x.depth, w.cols, w.depth, spec_.depth, spec_.cols, spec_.depth);
  }
  if (auto why = fused_->why_not({x, w, bias}); !why.empty()) return why;
  if (out == nullptr || x.rows == 0) return "";
  const std::int64_t bytes = x.rows * spec_.cols * static_cast<std::int64_t>(sizeof(Bf16));
  if (fused_->in_window(out, bytes)) {
    return "out lies in the symmetric window (an earlier result?): give other memory, or none";
  }
  if (overlap(out, bytes, x.codes, (x.rows - 1) * x.row_stride + x.depth) ||
      overlap(out, bytes, w.codes, (w.cols - 1) * w.row_stride + w.depth)) {
    return "out overlaps an operand: give other memory";
  }
  return "";
}

Output GemmAllReduce::run(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out,
                          Timeline* timeline, void* stream) {
  if (const std::string why = why_not(x, w, out, bias); !why.empty()) {
    refuse(stream);
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  const Bf16* result = fused_->run({x, w, bias, timeline, stream});
  if (out != nullptr) {
    engine_->copy(out, result, static_cast<std::size_t>(x.rows * spec_.cols) * sizeof(Bf16),
                  stream);
    result = out;
  }
  return {result, x.rows, spec_.cols};
}

}  // namespace rowband
