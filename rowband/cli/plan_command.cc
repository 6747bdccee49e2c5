// `rowband plan`: what a call would do, without doing it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "rowband/base/fail.h"
#include "rowband/cli/commands.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/plan_report.h"
#include "rowband/cli/ranks.h"

namespace rowband::cli {
namespace {

struct PlanFlags {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::optional<std::int64_t> depth;
  std::optional<std::int64_t> total_depth;
  std::optional<int> ranks;
  std::optional<EngineKind> engine;
  PlannerOptions planner;
  LayerFlags layer;
  PolicyFlags policy;
  bool tiles = false;
  bool json = false;
};

constexpr int kDefaultRanks = 2;

std::int64_t depth_per_rank(const PlanFlags& flags, int world) {
  if (!flags.total_depth) return *flags.depth;
  if (const auto why = why_not_divisible(*flags.total_depth, world); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  return *flags.total_depth / world;
}

int print_plan(const PlanFlags& flags) {
  // The world is planned, not started: mpirun has no say.
  const int world = flags.ranks.value_or(kDefaultRanks);
  if (flags.rows < 0) {
    fail(ErrorCode::kInvalidArgument, "--rows {}: must be 0 or more", flags.rows);
  }
  LayerOptions options = flags.layer.resolve(flags.rows);
  flags.policy.apply_to(options.policy);
  const PlanReport report(options, engine_or_default(flags.engine), flags.planner, flags.rows,
                          flags.cols, depth_per_rank(flags, world), world);
  if (flags.json) {
    fmt::print("{}\n", report.json(flags.tiles).dump(2));
  } else {
    fmt::print("{}", report.text(flags.tiles));
  }
  return kOk;
}

}  // namespace

void add_plan_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App& command = *program.add_subcommand(
      "plan", "Show what a call would do: bands, chunks, tile order, bytes, and would it be fused");
  command.add_option("--rows", flags->rows, "M of the call")->required()->type_name("M");
  command.add_option("--cols", flags->cols, "Columns of the output")->required()->type_name("N");
  auto* depth_group = command.add_option_group("inner dimension", "One of the two is required");
  depth_group->add_option("--depth", flags->depth, "K of one rank")->type_name("K");
  depth_group->add_option("--total-depth", flags->total_depth, "K of all ranks together")
      ->type_name("K");
  depth_group->require_option(1);
  add_ranks_option(command, flags->ranks, kDefaultRanks);
  add_engine_option(command, flags->engine);
  command
      .add_option("--sms", flags->planner.multiprocessors,
                  "Engine cuda: multiprocessors of the GPU that is planned for")
      ->check(CLI::Range(2, 1024).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  command
      .add_option("--device-ranks", flags->planner.device_ranks, "Engine cuda: ranks that share it")
      ->check(CLI::Range(1, 64).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  flags->layer.add_to(command);
  flags->policy.add_to(command);
  command.add_flag("--tiles", flags->tiles, "List every tile in the order of each rank");
  command.add_flag("--json", flags->json, "Print JSON");
  command.callback([flags, &chosen] { chosen = [flags] { return print_plan(*flags); }; });
}

}  // namespace rowband::cli
