#include "rowband/cli/bench_sweep.h"

#include <algorithm>
#include <optional>

#include "rowband/base/fail.h"
#include "rowband/cli/progress.h"
#include "rowband/cli/random_operands.h"
#include "rowband/cli/ranks.h"
#include "rowband/comm/mpi.h"
#include "rowband/engines/host/machine.h"

namespace rowband::cli {
namespace {

constexpr int kDefaultRanks = 2;
constexpr int kQuantizeRepeats = 5;

// All arms of one weight; what cannot be made here is reported instead of timed.
struct ArmSet {
  std::vector<std::unique_ptr<Arm>> arms;
  std::vector<ArmResult> unavailable;
};

class SweepOnRank {
 public:
  SweepOnRank(Communicator& comm, const SweepFlags& flags, const LayerOptions& options,
              Progress& progress, std::vector<ShapeResult>& results)
      : comm_(comm),
        flags_(flags),
        options_(options),
        progress_(progress),
        results_(results),
        engine_(make_rank_engine(comm, flags.engine, deadline())) {}

  void run() {
    for (const std::int64_t cols : flags_.cols) {
      for (const std::int64_t depth : flags_.depths) run_weight(cols, depth);
    }
  }

 private:
  Deadline deadline() const { return Deadline::after(options_.deadline); }

  void run_weight(std::int64_t cols, std::int64_t depth) {
    const Fp8Weight weight =
        random_weight_slice(flags_.seed, cols, depth * comm_.size(), comm_.rank(), comm_.size());
    const ArmSet set = make_arms(weight);
    for (const std::int64_t rows : flags_.rows) {
      ShapeResult result = run_shape(rows, weight, set.arms);
      result.arms.insert(result.arms.end(), set.unavailable.begin(), set.unavailable.end());
      if (comm_.rank() == 0) results_.push_back(std::move(result));
    }
  }

  ArmSet make_arms(const Fp8Weight& weight) {
    ArmSet set;
    for (const ArmSpec& spec : flags_.arms) {
      try {
        set.arms.push_back(make_arm(comm_, engine_, spec, weight, no_bias_, options_));
      } catch (const Error& error) {
        // The same on all ranks, which stand at the same place afterwards.
        if (error.code() != ErrorCode::kOutOfMemory && error.code() != ErrorCode::kCorrupted) throw;
        ArmResult result;
        result.spec = spec;
        result.wrong = error.what();
        set.unavailable.push_back(std::move(result));
      }
    }
    return set;
  }

  ShapeResult run_shape(std::int64_t rows, const Fp8Weight& weight,
                        const std::vector<std::unique_ptr<Arm>>& arms) {
    progress_.next(
        fmt::format("M={} N={} K={} W={}", rows, weight.cols, weight.depth, comm_.size()));
    ShapeResult result{rows, weight.cols, weight.depth, comm_.size(), 0, {}};
    std::vector<QuantizedActivations> sets;
    std::vector<double> quantize_ms;
    for (int i = 0; i < flags_.sets; ++i) {
      const auto x = random_activations(flags_.seed, i, rows, weight.depth_begin, weight.depth);
      sets.emplace_back(*engine_, x.data(), rows, weight.depth, weight.depth);
      for (int repeat = 0; repeat < kQuantizeRepeats; ++repeat) {
        quantize_ms.push_back(time_call(comm_, deadline(), [&] {
                                engine_->quantize(x.data(), rows, weight.depth, weight.depth,
                                                  ScaleFormat::kFp32, sets.back().codes.data(),
                                                  sets.back().scales.data());
                              }).ms);
      }
    }
    result.quantize_ms = median(quantize_ms);
    result.arms = compare_arms(comm_, *engine_, weight, no_bias_, sets, arms,
                               {.repeats = flags_.repeats,
                                .threads = std::max(1, host::allowed_cores() / comm_.size()),
                                .deadline = options_.deadline});
    return result;
  }

  Communicator& comm_;
  const SweepFlags& flags_;
  const LayerOptions& options_;
  Progress& progress_;
  std::vector<ShapeResult>& results_;
  const std::shared_ptr<Engine> engine_;
  const std::vector<Bf16> no_bias_;
};

}  // namespace

std::vector<int> worlds_of(const SweepFlags& flags) {
  if (flags.worlds.empty()) return {world_size(std::nullopt, kDefaultRanks)};
  std::vector<int> worlds;
  for (const int world : flags.worlds) worlds.push_back(world_size(world, kDefaultRanks));
  if (worlds.size() > 1 && flags.engine.ranks_as == RanksAs::kProcesses) {
    fail(ErrorCode::kInvalidArgument,
         "--ranks-as processes: takes one W in --ranks; several are threads");
  }
  return worlds;
}

std::vector<ShapeResult> run_sweep(const SweepFlags& flags) {
  const auto worlds = worlds_of(flags);
  const LayerOptions options = flags.layer.resolve(std::ranges::max(flags.rows));
  if (const std::int64_t most = std::ranges::max(flags.rows); most > options.max_rows) {
    fail(ErrorCode::kInvalidArgument, "M={} rows are more than the capacity of {} rows (max_rows)",
         most, options.max_rows);
  }
  for (const int world : worlds) {
    for (const std::int64_t cols : flags.cols) {
      for (const std::int64_t depth : flags.depths) {
        require_expressible(options, flags.engine, cols, depth, world);
      }
    }
  }
  std::vector<ShapeResult> results;
  const std::size_t shapes =
      worlds.size() * flags.rows.size() * flags.cols.size() * flags.depths.size();
  Progress progress(static_cast<std::int64_t>(shapes), is_first_process());
  for (const int world : worlds) {
    run_on_ranks(world, [&](Communicator& comm) {
      Progress silent(1, false);
      SweepOnRank(comm, flags, options, comm.rank() == 0 ? progress : silent, results).run();
      return 0;
    });
  }
  return results;
}

}  // namespace rowband::cli
