#include "rowband/cli/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rowband/cli/ranks.h"
#include "rowband/cli/verify.h"
#include "rowband/numerics/reference.h"

namespace rowband::cli {
namespace {

constexpr int kMostRepeats = 20, kLeastRepeats = 5;
constexpr double kAutoBudgetMs = 2000;  // per arm

std::span<const Bf16> values(const Output& y) {
  return {y.data, static_cast<std::size_t>(y.rows * y.cols)};
}

class Comparison {
 public:
  Comparison(Communicator& comm, Engine& engine, const Fp8Weight& weight,
             const std::vector<Bf16>& bias, const std::vector<QuantizedActivations>& sets,
             const std::vector<std::unique_ptr<Arm>>& arms, const CompareOptions& options)
      : comm_(comm), sets_(sets), arms_(arms), options_(options) {
    for (const auto& arm : arms) {
      results_.emplace_back().spec = arm->spec();
      results_.back().same_bits = true;
    }
    const std::int64_t rows = sets.front().rows;
    const PlanSpec spec = engine.with_tiles({.max_rows = std::max<std::int64_t>(rows, 1),
                                             .cols = weight.cols,
                                             .depth = weight.depth,
                                             .world = comm.size()});
    rows_ = sample_rows(CallPlan(spec, rows), comm.size(),
                        affordable_rows(weight.cols, weight.total_depth) / std::ssize(sets));
    for (const QuantizedActivations& set : sets) {
      references_.emplace_back(comm, set.view(), rows_, weight.view(),
                               bias.empty() ? nullptr : bias.data(), options.threads, deadline());
    }
  }

  // Every arm on every set, one set after the other, so that a stale result is a wrong one.
  void check_all() {
    for (std::size_t set = 0; set < sets_.size(); ++set) {
      Output base;
      for (std::size_t arm = 0; arm < arms_.size(); ++arm) {
        const std::int64_t calls = arms_[arm]->fused_calls();
        const Output result = arms_[arm]->run(sets_[set].view(), nullptr);
        if (arm == 0) base = result;
        check(arm, set, result, base, calls + 1);
      }
    }
  }

  void time_all() {
    const int repeats = options_.repeats > 0 ? options_.repeats : affordable_repeats();
    for (int i = 0; i < repeats; ++i) {
      for (std::size_t arm = 0; arm < arms_.size(); ++arm) {
        if (results_[arm].wrong.empty()) time_once(arm, static_cast<std::size_t>(i) % sets_.size());
      }
    }
  }

  std::vector<ArmResult> take_results() {
    for (ArmResult& result : results_) {
      if (result.wrong.empty()) continue;
      result.ms.clear();
      result.skew_ms.clear();
      result.gemm_ms.clear();
      result.all_reduce_ms.clear();
    }
    return std::move(results_);
  }

 private:
  Deadline deadline() const { return Deadline::after(options_.deadline); }

  // The worst over ranks of a number that each rank has; NaN is worse than anything.
  double worst(double own) const {
    double worst = 0;
    for (const double value : gather(comm_, own, deadline())) {
      if (std::isnan(value)) return value;
      worst = std::max(worst, value);
    }
    return worst;
  }

  void check(std::size_t arm, std::size_t set, const Output& result, const Output& base,
             std::int64_t calls_wanted) {
    ArmResult& found = results_[arm];
    const Wire wire = found.spec.wire;
    const double error = worst(references_[set].relative_l2(result, rows_));
    found.relative_l2 = std::isnan(error) ? error : std::max(found.relative_l2, error);
    const double from_base = worst(relative_l2(values(result), values(base)));
    const std::string differing = why_ranks_differ(comm_, row_digests(result), deadline());
    if (!differing.empty()) found.same_bits = false;
    const std::int64_t calls = arms_[arm]->fused_calls();

    if (!found.wrong.empty()) return;
    if (!(error <= tolerance(wire))) {
      found.wrong =
          fmt::format("relative L2 {:.2e} against float64 exceeds {:.0e}", error, tolerance(wire));
    } else if (!(from_base <=
                 tolerance(Wire::kBf16) + tolerance(wire))) {  // all rows; both may err
      found.wrong = fmt::format("relative L2 {:.2e} against the base path exceeds {:.0e}",
                                from_base, tolerance(Wire::kBf16) + tolerance(wire));
    } else if (!differing.empty()) {
      found.wrong = differing;
    } else if (found.spec.fused && calls != calls_wanted) {
      found.wrong =
          fmt::format("the fused path began {} calls where {} were made", calls, calls_wanted);
    }
  }

  int affordable_repeats() {
    comm_.barrier(deadline());
    const CallTime base =
        time_call(comm_, deadline(), [&] { arms_[0]->run(sets_[0].view(), nullptr); });
    return static_cast<int>(std::clamp(kAutoBudgetMs / std::max(base.ms, 1e-3), 1.0 * kLeastRepeats,
                                       1.0 * kMostRepeats));
  }

  void time_once(std::size_t arm, std::size_t set) {
    ArmResult& found = results_[arm];
    Interval gemm, all_reduce;
    const CallTime time = time_call(comm_, deadline(), [&] {
      gemm.begin_ns = now_ns();
      arms_[arm]->run(sets_[set].view(), nullptr);
      all_reduce.end_ns = now_ns();
    });
    found.ms.push_back(time.ms);
    found.skew_ms.push_back(time.skew_ms);
    const auto split = arms_[arm]->gemm_end_ns();
    if (!split) return;
    gemm.end_ns = all_reduce.begin_ns = *split;
    found.gemm_ms.push_back(call_time(gather(comm_, gemm, deadline())).ms);
    found.all_reduce_ms.push_back(call_time(gather(comm_, all_reduce, deadline())).ms);
  }

  Communicator& comm_;
  const std::vector<QuantizedActivations>& sets_;
  const std::vector<std::unique_ptr<Arm>>& arms_;
  const CompareOptions options_;
  std::vector<std::int64_t> rows_;  // that the references know
  std::vector<Reference> references_;
  std::vector<ArmResult> results_;
};

}  // namespace

std::vector<ArmResult> compare_arms(Communicator& comm, Engine& engine, const Fp8Weight& weight,
                                    const std::vector<Bf16>& bias,
                                    const std::vector<QuantizedActivations>& sets,
                                    const std::vector<std::unique_ptr<Arm>>& arms,
                                    const CompareOptions& options) {
  Comparison comparison(comm, engine, weight, bias, sets, arms, options);
  comparison.check_all();
  comparison.time_all();
  comparison.check_all();
  return comparison.take_results();
}

}  // namespace rowband::cli
