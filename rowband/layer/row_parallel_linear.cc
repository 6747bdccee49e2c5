#include "rowband/layer/row_parallel_linear.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "rowband/base/fail.h"
#include "rowband/numerics/reference.h"

namespace rowband {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             Deadline::Clock::now().time_since_epoch())
      .count();
}

struct Span {
  const Bf16* begin;
  std::int64_t count;
};

bool overlap(Span a, Span b) {
  const std::less<const Bf16*> before;
  return before(a.begin, b.begin + b.count) && before(b.begin, a.begin + a.count);
}

std::string scale_format_name(ScaleFormat format) {
  return format == ScaleFormat::kUe8m0 ? "ue8m0" : "fp32";
}

GemmAllReduceOptions op_options(const LayerOptions& o, const Fp8Weight& weight) {
  return {.max_rows = o.max_rows,
          .cols = weight.cols,
          .depth = weight.depth,
          .wire = o.wire,
          .transport = o.transport,
          .gather_scale = o.gather_scale,
          .chunks = o.chunks,
          .slots = o.slots,
          .deadline = o.deadline,
          .faults = o.faults};
}

std::string why_bad(const LayerOptions& o, const Fp8Weight& w, const std::vector<Bf16>& bias) {
  if (o.slots < 1) return fmt::format("slots={}: must be at least 1", o.slots);
  if (o.deadline <= std::chrono::nanoseconds(0)) return "the deadline must be more than 0 s";
  if (o.policy.min_rows.value_or(0) < 0)
    return fmt::format("min_rows={}: must be 0 or more", *o.policy.min_rows);
  if (!(o.policy.min_fill >= 0 && o.policy.min_fill <= 1)) {
    return fmt::format("min_fill={}: must lie in 0..1", o.policy.min_fill);
  }
  if (!bias.empty() && static_cast<std::int64_t>(bias.size()) != w.cols) {
    return fmt::format("the bias has {} elements, the weight N={} columns", bias.size(), w.cols);
  }
  if (auto why = why_not_valid(w.view()); !why.empty()) return why;
  return why_scales_not_valid(w.view());
}

}  // namespace

RowParallelLinear::RowParallelLinear(Communicator& comm, std::shared_ptr<Engine> engine,
                                     Fp8Weight weight, std::vector<Bf16> bias,
                                     const LayerOptions& options)
    : comm_(comm),
      engine_(std::move(engine)),
      memory_(engine_, std::move(weight), std::move(bias)),
      spec_(GemmAllReduce::plan_spec(*engine_, op_options(options, memory_.weight()), comm.size())),
      options_([&] {
        LayerOptions o = options;
        o.policy = with_measured_limits(o.policy, engine_->name(), spec_);
        return o;
      }()) {}

RowParallelLinear::~RowParallelLinear() {
  try {
    close();
  } catch (const Error& error) {
    spdlog::error("rowband: closing a layer: {}", error.what());
  }
}

std::unique_ptr<RowParallelLinear> RowParallelLinear::create(Communicator& comm,
                                                             std::shared_ptr<Engine> engine,
                                                             Fp8Weight weight,
                                                             std::vector<Bf16> bias,
                                                             const LayerOptions& options) {
  std::unique_ptr<RowParallelLinear> layer(
      new RowParallelLinear(comm, std::move(engine), std::move(weight), std::move(bias), options));
  // A deadline that is refused below must not cut the agreement on that short.
  const bool usable = options.deadline > std::chrono::nanoseconds(0);
  const auto deadline = [&] {
    return Deadline::after(usable ? options.deadline : std::chrono::nanoseconds(kDefaultDeadline));
  };
  agree_on_success(comm, "RowParallelLinear",
                   why_bad(options, layer->weight(), layer->memory_.host_bias()),
                   ErrorCode::kInvalidArgument, deadline());
  agree_on_values(comm, "RowParallelLinear",
                  {{"N", std::to_string(layer->weight().cols)},
                   {"K per rank", std::to_string(layer->weight().depth)},
                   {"bias", layer->memory_.host_bias().empty() ? "none" : "given"},
                   {"fuse", options.policy.enabled ? "on" : "off"},
                   {"min_rows", std::to_string(*layer->options_.policy.min_rows)},
                   {"min_fill", fmt::format("{}", options.policy.min_fill)},
                   {"activation scales", scale_format_name(options.activation_scales)},
                   {"debug check", options.debug_check ? "on" : "off"}},
                  deadline());
  if (options.policy.enabled) layer->make_op();
  std::string failure;
  try {
    layer->memory_.take(layer->room());
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_success(comm, "the layer's memory", failure, ErrorCode::kOutOfMemory, deadline());
  layer->all_reduce_ = layer->engine_->make_all_reduce(comm, deadline());
  return layer;
}

// A machine that cannot give the window, or a transport that moves nothing, is a reason to decline;
// it is the same on all ranks. Disagreement, a lost peer or a passed deadline is not: it would hit
// the base path as well.
void RowParallelLinear::make_op() {
  try {
    op_ = GemmAllReduce::create(comm_, engine_, op_options(options_, weight()));
  } catch (const Error& error) {
    const auto code = error.code();
    if (code != ErrorCode::kOutOfMemory && code != ErrorCode::kUnavailable &&
        code != ErrorCode::kCorrupted && code != ErrorCode::kInvalidArgument) {
      throw;
    }
    unavailable_ = error.what();
  }
}

// Fused results lie in the window, so the slots serve declined calls up to the capacity.
LayerMemory::Room RowParallelLinear::room() const {
  const bool all = !op_ || options_.debug_check;
  return {.max_rows = options_.max_rows,
          .slot_rows = all ? options_.max_rows : most_declined_rows(options_.policy, spec_),
          .slots = options_.slots,
          .scratch = op_ != nullptr && options_.debug_check};
}

Verdict RowParallelLinear::verdict(std::int64_t rows) const {
  if (!unavailable_.empty()) {
    return {Decision::kUnavailable,
            fmt::format("the fused op could not be made: {}", unavailable_)};
  }
  return decide(options_.policy, spec_, rows);
}

void RowParallelLinear::count(const Verdict& verdict, std::int64_t rows) {
  std::int64_t& calls = counters_.calls[static_cast<std::size_t>(verdict.decision)];
  if (++calls == 1 && verdict.decision != Decision::kFuse && comm_.rank() == 0) {
    spdlog::info("rowband: declined, {}: {} (logged once; the counters go on)",
                 decision_name(verdict.decision), verdict.reason);
  }
  if (!options_.shape_log) return;
  LayerCounters::Shape& shape = counters_.shapes[rows];
  ++(verdict.decision == Decision::kFuse ? shape.fused : shape.declined);
}

std::string RowParallelLinear::why_bad_arguments(const Bf16* x, std::int64_t rows,
                                                 std::int64_t x_row_stride, const Bf16* out) const {
  if (closed_) return "the layer has been closed";
  if (rows < 0) return fmt::format("M={} rows: must be 0 or more", rows);
  if (rows == 0) return "";
  if (x == nullptr) return fmt::format("x is null, M={} rows", rows);
  if (x_row_stride < weight().depth) {
    return fmt::format("x_row_stride={}: must be at least K={}", x_row_stride, weight().depth);
  }
  if (auto why = engine_->why_not_reachable(x); !why.empty()) return "x at " + why;
  if (out == nullptr) return "";
  if (auto why = engine_->why_not_reachable(out); !why.empty()) return "out at " + why;
  if (reinterpret_cast<std::uintptr_t>(out) % engine_->output_alignment() != 0) {
    return fmt::format("out at {}: must be a multiple of {} bytes", fmt::ptr(out),
                       engine_->output_alignment());
  }
  const std::int64_t count = rows * weight().cols;
  if (overlap({out, count}, {x, (rows - 1) * x_row_stride + weight().depth})) {
    return "out overlaps x: give other memory, or none";
  }
  // The same answer on both paths, although each keeps its results elsewhere.
  const bool earlier =
      memory_.in_a_slot(out, count) ||
      (op_ && op_->in_window(out, count * static_cast<std::int64_t>(sizeof(Bf16))));
  return earlier ? "out overlaps an earlier result of this layer: give other memory, or none" : "";
}

Output RowParallelLinear::forward(const Bf16* x, std::int64_t rows, std::int64_t x_row_stride,
                                  Bf16* out, Timeline* timeline, void* stream) {
  if (const std::string why = why_bad_arguments(x, rows, x_row_stride, out); !why.empty()) {
    if (op_)
      op_->refuse(stream);  // so that peers that did begin the call do not wait for this rank
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  const Verdict verdict = this->verdict(rows);
  count(verdict, rows);
  const ActivationView view =
      memory_.quantize(x, rows, x_row_stride, options_.activation_scales, stream);
  if (verdict.decision != Decision::kFuse) return base_path(view, out, timeline, stream);
  if (options_.debug_check) return checked_fused(view, out, timeline, stream);
  return op_->run(view, memory_.weight_view(), memory_.bias(), out, timeline, stream);
}

void RowParallelLinear::finish(void* stream) {
  engine_->synchronize(stream);
  std::string reason = op_ ? op_->poison() : "";
  if (reason.empty()) reason = all_reduce_->poison();
  if (!reason.empty()) fail(ErrorCode::kPoisoned, "a call failed: {}", reason);
}

Output RowParallelLinear::base_path(const ActivationView& x, Bf16* out, Timeline* timeline,
                                    void* stream) {
  const std::int64_t count = x.rows * weight().cols;
  if (out == nullptr) out = memory_.next_slot(count);
  engine_->gemm(x, memory_.weight_view(), nullptr, out, timeline, stream);
  if (timeline != nullptr) engine_->synchronize(stream);
  const std::int64_t begin = now_ns();
  all_reduce_->run(out, count, Deadline::after(options_.deadline), stream);
  if (timeline != nullptr) {
    engine_->synchronize(stream);
    timeline->add({{comm_.rank(), "all-reduce", Activity::kAllReduce,
                    fmt::format("{} rows of {}", x.rows, weight().cols), begin, now_ns()}});
  }
  // Once, to the sum: in a partial the bias would cost it the bits that the other partials need.
  if (memory_.bias() != nullptr)
    engine_->add_bias(out, x.rows, weight().cols, memory_.bias(), stream);
  return {out, x.rows, weight().cols};
}

std::vector<Bf16> RowParallelLinear::fetch(const Output& y, void* stream) {
  std::vector<Bf16> values(static_cast<std::size_t>(y.rows * y.cols));
  engine_->download(values.data(), y.data, values.size() * sizeof(Bf16), stream);
  finish(stream);
  return values;
}

Output RowParallelLinear::checked_fused(const ActivationView& x, Bf16* out, Timeline* timeline,
                                        void* stream) {
  // Copied out of the window, since the second run takes an output slot of its own there and the
  // caller may still read the results of earlier calls.
  const std::int64_t count = x.rows * weight().cols;
  if (out == nullptr) out = memory_.next_slot(count);
  const Output fused = op_->run(x, memory_.weight_view(), memory_.bias(), out, timeline, stream);
  const Output again = op_->run(x, memory_.weight_view(), memory_.bias(), nullptr, nullptr, stream);
  const auto first = fetch(fused, stream), second = fetch(again, stream);
  const auto base = fetch(base_path(x, memory_.scratch(count), nullptr, stream), stream);
  spdlog::info(
      "rowband: debug check, rank {}, M={}: relative L2 of fused against base {:.3e}, of fused "
      "against itself {:.3e}",
      comm_.rank(), x.rows, relative_l2(first, base), relative_l2(second, first));
  return fused;
}

void RowParallelLinear::close() {
  if (std::exchange(closed_, true)) return;
  if (op_) op_->close();
  if (!engine_->on_host()) engine_->finish();  // nothing works on the layer's memory any more
  if (!options_.shape_log || comm_.rank() != 0) return;
  for (const auto& [rows, shape] : counters_.shapes) {
    spdlog::info("rowband: shape log, N={} K={}: M={} fused {} declined {}", weight().cols,
                 weight().depth, rows, shape.fused, shape.declined);
  }
}

}  // namespace rowband
