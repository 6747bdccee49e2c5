#include "rowband/cli/verify_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rowband/base/fail.h"
#include "rowband/cli/options.h"
#include "rowband/cli/random_operands.h"
#include "rowband/cli/ranks.h"
#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

Deadline deadline_of(const LayerRun& run) { return Deadline::after(run.options.deadline); }

// Rows of the activations, quantised by the scalar formula and not by the engine.
struct QuantizedRows {
  std::vector<E4m3> codes;
  std::vector<float> scales;
  std::int64_t count;
  std::int64_t depth;

  QuantizedRows(const ActivationSlice& x, const std::vector<std::int64_t>& rows, std::int64_t k,
                ScaleFormat format)
      : codes(rows.size() * static_cast<std::size_t>(k)),
        scales(rows.size() * static_cast<std::size_t>(k / kScaleBlock)),
        count(std::ssize(rows)),
        depth(k) {
    for (std::int64_t i = 0; i < count; ++i) {
      quantize_activations(x.data + rows[static_cast<std::size_t>(i)] * x.row_stride, 1, depth,
                           depth, format, codes.data() + i * depth, depth,
                           scales.data() + i * (depth / kScaleBlock));
    }
  }
  ActivationView view() const {
    return {codes.data(), count, depth, depth, scales.data(), depth / kScaleBlock, 1};
  }
};

bool nan_is_largest(double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; }

bool fused(const LayerRun& run) {
  return run.layer.verdict(run.input.rows()).decision == Decision::kFuse;
}

std::vector<std::int64_t> rows_to_check(const LayerRun& run) {
  const int world = run.comm.size();
  PlanSpec spec = GemmAllReduce::plan_spec(
      *run.engine, op_options(run.options, run.input.cols(), run.input.depth()), world);
  spec.max_rows =
      std::max<std::int64_t>(run.input.rows(), 1);  // on the base path there may be more
  return sample_rows(CallPlan(spec, run.input.rows()), world,
                     affordable_rows(run.input.cols(), run.input.total_depth()));
}

Check check_reference(const LayerRun& run, const Output& result) {
  const auto rows = rows_to_check(run);
  const QuantizedRows x(run.x, rows, run.input.depth(), run.options.activation_scales);
  std::vector<std::int64_t> x_rows(rows.size());
  std::iota(x_rows.begin(), x_rows.end(), 0);
  const HostWeight weight(*run.engine, run.layer.weight_view());
  const Reference reference(run.comm, x.view(), x_rows, weight.view(),
                            run.bias.empty() ? nullptr : run.bias.data(), run.threads,
                            deadline_of(run));
  // One number for all ranks, whose results may differ.
  const double error = std::ranges::max(
      gather(run.comm, reference.relative_l2(result, rows), deadline_of(run)), nan_is_largest);
  const double limit = tolerance(fused(run) ? run.options.wire : Wire::kBf16);
  const bool ok = error <= limit;
  const std::string sample =
      std::ssize(rows) == result.rows
          ? fmt::format("all {} rows", result.rows)
          : fmt::format("{} of {} rows, the first and last of each band among them", rows.size(),
                        result.rows);
  return {ok, fmt::format("relative L2 {:.2e} {} {:.0e} against float64, on {}", error,
                          ok ? "<=" : "exceeds", limit, sample)};
}

Check check_ranks(const LayerRun& run) {
  const auto why = why_ranks_differ(run.comm, run.call_rows.back(), deadline_of(run));
  const int world = run.comm.size();
  if (!why.empty()) return {false, why};
  return {true, world == 1 ? "one rank" : fmt::format("the same bits on all {} ranks", world)};
}

Check check_repetitions(const LayerRun& run) {
  std::string own;
  for (std::size_t call = 1; call < run.call_rows.size() && own.empty(); ++call) {
    if (const auto row = first_difference(run.call_rows[0], run.call_rows[call])) {
      own = fmt::format("rank {}: row {} of call {} has other bits than in call 1", run.comm.rank(),
                        *row, call + 1);
    }
  }
  const auto why = first_finding(run.comm, own, deadline_of(run));
  return {why.empty(),
          why.empty() ? fmt::format("the same bits in {} calls", run.call_rows.size()) : why};
}

// The last rows alone: in other tiles, and owned by other ranks.
Check check_batch_invariance(LayerRun& run) {
  const std::int64_t rows = run.input.rows();
  const std::int64_t fewer = (3 * rows + 6) / 7;
  const std::int64_t first = rows - fewer;
  if (fewer == rows) return {true, fmt::format("M={} has no smaller call to compare with", rows)};
  const Output part = run.layer.forward(run.engine_x.data + first * run.engine_x.row_stride, fewer,
                                        run.engine_x.row_stride);
  run.layer.finish();
  std::vector<Bf16> storage;
  const auto part_rows = row_digests(to_host(*run.engine, part, storage));
  const std::span<const std::uint64_t> whole(run.call_rows.back());
  std::string own;
  if (const auto row =
          first_difference(whole.subspan(static_cast<std::size_t>(first)), part_rows)) {
    own = fmt::format("rank {}: row {} has other bits with M={} than with M={}", run.comm.rank(),
                      first + *row, fewer, rows);
  }
  const auto why = first_finding(run.comm, own, deadline_of(run));
  return {why.empty(), why.empty() ? fmt::format("rows {}..{} have the same bits with M={}", first,
                                                 rows - 1, fewer)
                                   : why};
}

// What each element of the ones test has to be: every partial is 2 K, rounded like all partials.
Bf16 expected_of_ones(std::int64_t depth, int world) {
  const float partial = to_float(to_bf16(static_cast<float>(2 * depth)));
  float sum = 0;
  for (int rank = 0; rank < world; ++rank) sum += partial;
  return to_bf16(sum);
}

Check check_ones(const LayerRun& run) {
  const std::int64_t rows = run.input.rows(), depth = run.input.depth();
  const int rank = run.comm.rank(), world = run.comm.size();
  LayerOptions options = run.options;
  options.activation_scales = ScaleFormat::kUe8m0;  // 1/256 instead of 1/448: every step is exact
  const auto layer = RowParallelLinear::create(
      run.comm, run.engine,
      constant_weight_slice(2.0f, run.input.cols(), run.input.total_depth(), rank, world), {},
      options);
  const std::vector<Bf16> x(static_cast<std::size_t>(rows * depth), to_bf16(1.0f));
  const EngineActivations engine_x = to_engine(*run.engine, x.data(), rows, depth, depth);
  const Output on_engine = layer->forward(engine_x.data, rows, depth);
  layer->finish();
  std::vector<Bf16> storage;
  const Output result = to_host(*run.engine, on_engine, storage);
  const Bf16 want = expected_of_ones(depth, world);
  const std::span values(result.data, static_cast<std::size_t>(result.rows * result.cols));
  std::string own;
  if (const auto bad = std::ranges::find_if(values, [&](Bf16 v) { return v != want; });
      bad != values.end()) {
    const std::int64_t at = bad - values.begin();
    own = fmt::format("rank {}: ones: [{}, {}] is {}, must be {}", rank, at / result.cols,
                      at % result.cols, to_float(*bad), to_float(want));
  }
  const auto why = first_finding(run.comm, own, deadline_of(run));
  return {why.empty(),
          why.empty() ? fmt::format("x=1, w=2 gives 2*K*W = {} in every element", to_float(want))
                      : why};
}

}  // namespace

std::vector<Check> verify_layer(LayerRun& run, const Output& result) {
  return {check_reference(run, result), check_ranks(run), check_repetitions(run),
          check_batch_invariance(run), check_ones(run)};
}

}  // namespace rowband::cli
