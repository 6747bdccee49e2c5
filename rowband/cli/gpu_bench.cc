#include "rowband/cli/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "rowband/base/fail.h"
#include "rowband/cli/gpu_arms.h"
#include "rowband/cli/gpu_operands.h"
#include "rowband/cli/progress.h"
#include "rowband/cli/ranks.h"
#include "rowband/cli/result_bits.h"
#include "rowband/cli/verify.h"
#include "rowband/engines/cuda/bandwidth.h"
#include "rowband/engines/cuda/engine.h"
#include "rowband/engines/cuda/gpu_timer.h"
#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/cuda/machine.h"
#include "rowband/engines/host/machine.h"

namespace rowband::cli {
namespace {

constexpr int kDefaultRanks = 2, kDefaultRepeats = 20;
constexpr double kQueuedUs = 3000;  // of calls that are timed together
constexpr int kFewestQueued = 4, kMostQueued = 64;
constexpr std::chrono::seconds kPairDeadline{20};

// Larger transfers reach more; past 256 MB nothing is gained.
template <typename Rate>
double best(const Rate& rate) {
  double best = 0;
  if (cuda::device_count() < 2 || !cuda::access(0, 1).possible) return best;
  for (const std::size_t bytes : {64u << 20, 112u << 20, 256u << 20}) {
    best = std::max(best, rate(0, 1, bytes, Deadline::after(kPairDeadline)));
  }
  return best;
}

std::string kernels_text() {
  std::string text;
  for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
    const auto use = cuda::fused_kernel_resources(wire == Wire::kFp8);
    text += fmt::format("{}{} wire, {} registers a thread at its start, {} bytes of local memory",
                        text.empty() ? "" : "; ", wire_name(wire), use.registers, use.local_bytes);
  }
  return text;
}

// One rank's measurements of one weight.
class WeightBench {
 public:
  WeightBench(Communicator& comm, const std::shared_ptr<Engine>& engine, AllReduce& all_reduce,
              const GpuBenchFlags& flags, const LayerOptions& options, std::int64_t cols,
              std::int64_t depth)
      : comm_(comm),
        engine_(engine),
        options_(options),
        threads_(std::max(1, host::allowed_cores() / comm.size())),
        repeats_(flags.repeats > 0 ? flags.repeats : kDefaultRepeats),
        cols_(cols),
        depth_(depth),
        arms_(comm, engine, all_reduce, flags.fused, options, cols, depth),
        operands_(*engine, options.max_rows, cols, depth,
                  flags.seed + static_cast<std::uint64_t>(1000 * comm.rank())),
        timer_(comm, engine->device(), deadline()) {}
  ~WeightBench() {
    try {
      timer_.synchronize();
    } catch (const Error&) {
      // On a GPU that has failed no call is on its way.
    }
  }
  WeightBench(const WeightBench&) = delete;
  WeightBench& operator=(const WeightBench&) = delete;

  const GpuArms& arms() const { return arms_; }

  GpuShapeResult measure(std::int64_t rows) {
    GpuShapeResult result = describe(rows);
    std::vector<std::uint64_t> digests = check(rows, result.arms);
    std::vector<int> queued(arms_.arms().size(), 0);
    for (int repeat = 0; repeat < repeats_; ++repeat) {
      for (std::size_t arm = 0; arm < result.arms.size(); ++arm) {
        GpuArmResult& found = result.arms[arm];
        if (!found.timed()) continue;
        if (queued[arm] == 0) queued[arm] = calls_to_queue(arm, rows);
        found.us.queued.push_back(time_queued(arm, rows, queued[arm]));
        found.us.single.push_back(time_single(arm, rows));
      }
    }
    check_again(rows, digests, result.arms);
    if (const auto failure = arms_.failure(); !failure.empty()) {
      fail(ErrorCode::kPoisoned, "M={} N={} K={}: {}", rows, cols_, depth_, failure);
    }
    return result;
  }

 private:
  Deadline deadline() const { return Deadline::after(options_.deadline); }

  GpuShapeResult describe(std::int64_t rows) const {
    GpuShapeResult result{{rows, cols_, depth_}, {}, 0, 0, {}};
    for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
      LayerOptions options = options_;
      options.wire = wire;
      const PlanSpec spec =
          GemmAllReduce::plan_spec(*engine_, op_options(options, cols_, depth_), comm_.size());
      const CallPlan plan(spec, rows);
      std::int64_t& most = wire == Wire::kBf16 ? result.bytes_bf16 : result.bytes_fp8;
      for (int rank = 0; rank < comm_.size(); ++rank) {
        most = std::max(most, plan.scatter_bytes(rank) + plan.gather_bytes(rank));
      }
      if (wire == Wire::kFp8) continue;
      FusionPolicy policy = options_.policy;
      policy.enabled = true;
      result.verdict = decide(with_measured_limits(policy, engine_->name(), spec), spec, rows);
    }
    for (const GpuArm& arm : arms_.arms()) {
      GpuArmResult& found = result.arms.emplace_back();
      found.name = arm.name;
      found.fused = arm.fused;
      found.like = arms_.arms()[static_cast<std::size_t>(arm.like)].name;
      found.absent = arm.why_not(rows);
    }
    return result;
  }

  const Bf16* call(std::size_t arm, std::int64_t rows, int set) {
    return arms_.arms()[arm].call(operands_.activations(set, rows), operands_.weight(set),
                                  timer_.stream());
  }

  std::vector<Bf16> result_of(std::size_t arm, std::int64_t rows) {
    arms_.spoil(timer_.stream());
    comm_.barrier(deadline());
    std::vector<Bf16> values(static_cast<std::size_t>(rows * cols_));
    engine_->download(values.data(), call(arm, rows, 0), values.size() * sizeof(Bf16),
                      timer_.stream());
    return values;
  }

  std::uint64_t digest(const std::vector<Bf16>& values) const {
    return digest_of_result(values, threads_);
  }

  // Fills in what is wrong; returns the digest of each arm's result.
  std::vector<std::uint64_t> check(std::int64_t rows, std::vector<GpuArmResult>& results) {
    std::vector<std::uint64_t> digests;
    std::map<int, std::vector<Bf16>> compared_with;
    for (std::size_t arm = 0; arm < results.size(); ++arm) {
      const GpuArm& described = arms_.arms()[arm];
      digests.push_back(0);
      if (!results[arm].timed()) continue;
      std::vector<Bf16> values = result_of(arm, rows);
      digests.back() = digest(values);
      const auto all = gather(comm_, digests.back(), deadline());
      const int like = described.like;
      const double own = like == static_cast<int>(arm)
                             ? 0
                             : relative_l2_of_results(values, compared_with.at(like), threads_);
      double& worst = results[arm].difference;
      for (const double one : gather(comm_, own, deadline())) {
        if (std::isnan(one) || one > worst) worst = one;
        if (std::isnan(worst)) break;
      }
      if (described.on_all_ranks && std::ranges::count(all, all.front()) != std::ssize(all)) {
        results[arm].wrong = "the ranks' results differ";
      } else if (!(worst <= described.limit)) {
        results[arm].wrong = fmt::format("relative L2 {:.2e} to {} exceeds {:.0e}", worst,
                                         results[arm].like, described.limit);
      }
      const auto needed = [&](const GpuArm& other) { return other.like == static_cast<int>(arm); };
      if (std::ranges::any_of(arms_.arms(), needed)) {
        compared_with[static_cast<int>(arm)] = std::move(values);
      }
    }
    return digests;
  }

  // The timed calls left an arm that still computes the same bits.
  void check_again(std::int64_t rows, const std::vector<std::uint64_t>& digests,
                   std::vector<GpuArmResult>& results) {
    for (std::size_t arm = 0; arm < results.size(); ++arm) {
      if (!results[arm].timed()) continue;
      const int changed = digest(result_of(arm, rows)) == digests[arm] ? 0 : 1;
      if (std::ranges::max(gather(comm_, changed, deadline())) == 0) continue;
      results[arm].wrong = "the result has other bits after the timed calls than before";
      results[arm].us = {};
    }
  }

  double worst_of_ranks(double us) { return std::ranges::max(gather(comm_, us, deadline())); }

  int calls_to_queue(std::size_t arm, std::int64_t rows) {
    const double us = time_queued(arm, rows, kFewestQueued);  // which warms up, too
    return static_cast<int>(
        std::clamp(kQueuedUs / std::max(us, 1.0), 1.0 * kFewestQueued, 1.0 * kMostQueued));
  }

  // Behind one that is not timed, during which the others are queued and a fused call's ranks meet.
  double time_queued(std::size_t arm, std::int64_t rows, int calls) {
    const int sets = operands_.sets(rows);
    timer_.synchronize();
    comm_.barrier(deadline());
    call(arm, rows, sets - 1);
    timer_.begin();
    for (int i = 0; i < calls; ++i) call(arm, rows, i % sets);
    timer_.end();
    return worst_of_ranks(timer_.microseconds() / calls);
  }

  double time_single(std::size_t arm, std::int64_t rows) {
    timer_.synchronize();
    next_set_ = (next_set_ + 1) % operands_.sets(rows);
    return 1e3 * time_call(comm_, deadline(), [&] {
                   call(arm, rows, next_set_);
                   timer_.synchronize();
                 }).ms;
  }

  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  const LayerOptions options_;
  const int threads_;  // on the host, for comparing results
  const int repeats_;
  const std::int64_t cols_, depth_;
  GpuArms arms_;
  const GpuOperands operands_;
  cuda::GpuTimer timer_;
  int next_set_ = 0;
};

std::int64_t most_rows(const std::vector<GpuShape>& shapes) {
  return std::ranges::max(shapes, {}, &GpuShape::rows).rows;
}

void bench_on_rank(Communicator& comm, const GpuBenchFlags& flags, const LayerOptions& options,
                   Progress& progress, GpuBenchResult& result) {
  const auto engine = make_rank_engine(comm, flags.engine, Deadline::after(options.deadline));
  if (comm.rank() == 0) {
    result.copy_rate = best(cuda::copy_engine_rate);
    result.store_rate = best(cuda::store_rate);
    result.kernels = kernels_text();
  }
  comm.barrier(Deadline::after(options.deadline));
  const auto all_reduce = engine->make_all_reduce(comm, Deadline::after(options.deadline));
  std::vector<GpuShape> left = flags.shapes;
  while (!left.empty()) {  // all shapes of one weight together
    const GpuShape first = left.front();
    const auto same = [&](const GpuShape& s) {
      return s.cols == first.cols && s.depth == first.depth;
    };
    std::vector<GpuShape> of_weight;
    std::ranges::copy_if(left, std::back_inserter(of_weight), same);
    std::erase_if(left, same);
    LayerOptions of_weight_options = options;
    of_weight_options.max_rows = most_rows(of_weight);
    WeightBench bench(comm, engine, *all_reduce, flags, of_weight_options, first.cols, first.depth);
    for (const GpuShape& shape : of_weight) {
      progress.next(fmt::format("M={} N={} K={}", shape.rows, shape.cols, shape.depth));
      GpuShapeResult measured = bench.measure(shape.rows);
      if (comm.rank() == 0) result.shapes.push_back(std::move(measured));
    }
    if (comm.rank() == 0) {
      result.engine = engine->description();
      result.all_reduce = all_reduce->description();
      result.not_served = bench.arms().not_served();
    }
    comm.barrier(Deadline::after(options.deadline));
  }
}

}  // namespace

const GpuArmResult* GpuShapeResult::find(std::string_view name) const {
  const auto found = std::ranges::find(arms, name, &GpuArmResult::name);
  return found == arms.end() || !found->timed() ? nullptr : &*found;
}

int gpu_bench_world(const GpuBenchFlags& flags) { return world_size(flags.ranks, kDefaultRanks); }

GpuBenchResult run_gpu_bench(const GpuBenchFlags& flags) {
  const int world = gpu_bench_world(flags);
  const LayerOptions options = flags.layer.resolve(most_rows(flags.shapes));
  for (const GpuShape& shape : flags.shapes) {
    LayerOptions served = options;  // the arms say themselves what is not served
    served.wire = Wire::kBf16;
    served.transport = Transport::kDirect;
    require_expressible(served, flags.engine, shape.cols, shape.depth, world);
  }
  if (const auto why = cuda::why_no_gpus(); !why.empty()) {
    fail(ErrorCode::kUnavailable, "bench --engine cuda needs a Hopper GPU: {}", why);
  }
  GpuBenchResult result;
  result.world = world;
  result.libraries = fmt::format("driver {}, CUDA runtime {}, cuBLASLt {}", cuda::driver_version(),
                                 cuda::cuda_runtime_version(), cuda::cublas_version());
  Progress progress(std::ssize(flags.shapes), is_first_process());
  run_on_ranks(world, [&](Communicator& comm) {
    Progress silent(1, false);
    bench_on_rank(comm, flags, options, comm.rank() == 0 ? progress : silent, result);
    return 0;
  });
  return result;
}

}  // namespace rowband::cli
