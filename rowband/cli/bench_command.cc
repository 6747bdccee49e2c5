// `rowband bench`: the options, and where its reports go.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "rowband/base/fail.h"
#include "rowband/cli/bench_kernels.h"
#include "rowband/cli/bench_report.h"
#include "rowband/cli/bench_sweep.h"
#include "rowband/cli/commands.h"
#include "rowband/cli/exit_codes.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/cli/gpu_bench_command.h"
#endif
#include "rowband/cli/ranks.h"
#include "rowband/cli/trace_files.h"
#include "rowband/trace/text_file.h"

namespace rowband::cli {
namespace {

constexpr std::int64_t kMostRows = std::int64_t{1} << 32;

struct BenchFlags {
  SweepFlags sweep;
  std::vector<std::string> arms;
  bool shapes_given = false, sets_given = false;
  bool m_sweep = false;
  bool gemm = false;
  bool quantizer = false;
  std::string json;
  std::string markdown;
  std::string plot;
};

int bench_on_cuda(const BenchFlags& flags) {
  if (!flags.plot.empty()) {
    fail(ErrorCode::kInvalidArgument, "--plot {}: is drawn of the host engine's sweep only",
         flags.plot);
  }
  if (flags.sets_given) {
    fail(ErrorCode::kInvalidArgument,
         "--sets {}: is for the engine host; the engine cuda takes as many as pass its L2",
         flags.sweep.sets);
  }
  if (flags.sweep.engine.threads != 0) {
    fail(ErrorCode::kInvalidArgument, "--threads {}: is for the engine host",
         flags.sweep.engine.threads);
  }
#ifdef ROWBAND_HAVE_CUDA
  return bench_on_gpus(
      {flags.sweep, flags.shapes_given, flags.m_sweep, flags.json, flags.markdown});
#else
  make_planner(EngineKind::kCuda, {});  // which says that this build has none
  return kFailed;
#endif
}

std::vector<ArmSpec> arms_of(const std::vector<std::string>& names) {
  std::vector<ArmSpec> arms = {parse_arm("base")};  // what the others are compared with
  for (const std::string& name : names) {
    const ArmSpec arm = parse_arm(name);
    const auto is_same = [&](const ArmSpec& other) { return other.name == arm.name; };
    if (std::ranges::none_of(arms, is_same)) arms.push_back(arm);
  }
  return arms;
}

void write_file(const std::string& path, const std::string& text) {
  write_text_file(path, text);
  fmt::print(stderr, "rowband: wrote {}\n", path);
}

// Time of the base path and the fused arms, on the engine that was asked for.
int bench_layer(BenchFlags flags) {
  flags.sweep.arms = arms_of(flags.arms);
  if (flags.sweep.engine.kind() == EngineKind::kCuda) return bench_on_cuda(flags);
  if (flags.m_sweep) {
    fail(ErrorCode::kInvalidArgument, "--sweep: is for the engine cuda; --rows takes several M");
  }
  if (!flags.plot.empty()) require_svg_name("--plot", flags.plot);
  if (const auto worlds = worlds_of(flags.sweep); worlds.size() == 1) {
    const auto status = run_in_own_processes(worlds[0], flags.sweep.engine);
    if (status) return *status;
  }
  const auto results = run_sweep(flags.sweep);
  const std::string failures = sweep_failures(results);
  if (!is_first_process()) return kOk;
  const std::string markdown = sweep_markdown(results) + "\n" + sweep_notes(flags.sweep);
  fmt::print("{}", markdown);
  if (!flags.markdown.empty()) write_file(flags.markdown, markdown);
  if (!flags.json.empty()) write_file(flags.json, sweep_json(flags.sweep, results).dump(2) + "\n");
  if (!flags.plot.empty()) {
    plot_sweep(results, flags.plot);
    fmt::print(stderr, "rowband: wrote {}\n", flags.plot);
  }
  if (failures.empty()) return kOk;
  fmt::print(stderr, "rowband: {}\n", failures);
  return kFailed;
}

int bench_kernels(BenchFlags flags) {
  if (flags.gemm) flags.sweep.engine.take_host("bench --gemm");
  if (!flags.plot.empty()) {
    fail(ErrorCode::kInvalidArgument, "--plot {}: is drawn of the sweep only", flags.plot);
  }
  const SweepFlags& sweep = flags.sweep;
  const KernelFlags kernel{sweep.rows,    sweep.cols, sweep.depths,
                           sweep.repeats, sweep.seed, sweep.engine};
  for (const std::int64_t cols : sweep.cols) {
    for (const std::int64_t depth : sweep.depths) {
      require_expressible(LayerFlags().resolve(1), sweep.engine, cols, depth, 1);
    }
  }
  const KernelReport report = flags.gemm ? bench_gemm(kernel) : bench_quantizer(kernel);
  fmt::print("{}", report.text);
  if (!flags.markdown.empty()) write_file(flags.markdown, report.text);
  if (!flags.json.empty()) write_file(flags.json, report.json.dump(2) + "\n");
  return report.ok ? kOk : kFailed;
}

void add_shape_options(CLI::App& command, SweepFlags& sweep) {
  command.add_option("--rows", sweep.rows, "M, one or several")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, kMostRows).description(""))
      ->capture_default_str()
      ->type_name("M,...");
  command.add_option("--cols", sweep.cols, "N, one or several")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("N,...");
  command.add_option("--depth", sweep.depths, "K of one rank, one or several")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("K,...");
  command
      .add_option("--ranks", sweep.worlds,
                  "W, one or several, which are threads then; 2 when not given. Under mpirun and "
                  "torchrun the "
                  "number of their processes")
      ->delimiter(',')
      ->type_name("W,...");
  command
      .add_option("--repeats", sweep.repeats,
                  "Timed calls of each arm; 0 takes 20, and fewer, but at least 5, of slow ones")
      ->check(CLI::Range(0, 100000).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  command.add_option("--sets", sweep.sets, "Sets of activations that the calls rotate through")
      ->check(CLI::Range(1, 1000).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  command.add_option("--seed", sweep.seed, "Of the random operands")
      ->capture_default_str()
      ->type_name("NUMBER");
}

}  // namespace

void add_bench_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<BenchFlags>();
  flags->arms = {"bf16-direct", "bf16-copy_engine", "fp8-direct"};
  CLI::App& command = *program.add_subcommand(
      "bench", "Time the base path against the fused one; every result is checked");
  add_shape_options(command, flags->sweep);
  command
      .add_option("--arms", flags->arms,
                  "Compared with base: bf16-direct, bf16-copy_engine, fp8-direct, fp8-copy_engine")
      ->delimiter(',')
      ->capture_default_str()
      ->type_name("ARM,...");
  LayerFlags& layer = flags->sweep.layer;
  command.add_option("--chunks", layer.chunks, "Most chunks per band")->type_name("COUNT");
  command.add_option("--deadline", layer.deadline_seconds, "Of every wait")->type_name("SECONDS");
  flags->sweep.engine.add_to(command);
  command.add_flag(
      "--sweep", flags->m_sweep,
      "Engine cuda: M from 1 to 32768, and from which M on the fused path is no slower");
  auto* gemm = command.add_flag(
      "--gemm", flags->gemm,
      "This engine's GEMM alone, against dequantising to fp32 and OpenBLAS on the same cores. "
      "OPENBLAS_CORETYPE in the environment forces OpenBLAS's kernels: unset it for a fair peer");
  command
      .add_flag("--quantizer", flags->quantizer,
                "The activations' quantiser alone, against a copy of as many bytes")
      ->excludes(gemm);
  command.add_option("--json", flags->json, "Write the figures as JSON")->type_name("FILE");
  command.add_option("--markdown", flags->markdown, "Write what is printed")->type_name("FILE");
  command.add_option("--plot", flags->plot, "Draw time over M, of the sweep")
      ->type_name("FILE.svg");
  command.callback([flags, &command, &chosen] {
    const auto given = [&](const char* option) { return command.count(option) > 0; };
    flags->sets_given = given("--sets");
    flags->shapes_given = given("--rows") || given("--cols") || given("--depth");
    chosen = [flags] {
      return flags->gemm || flags->quantizer ? bench_kernels(*flags) : bench_layer(*flags);
    };
  });
}

}  // namespace rowband::cli
