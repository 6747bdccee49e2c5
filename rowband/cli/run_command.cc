// `rowband run`: one layer, on a checkpoint or on random operands.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "rowband/base/fail.h"
#include "rowband/cli/commands.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/layer_input.h"
#include "rowband/cli/measure.h"
#include "rowband/cli/ranks.h"
#include "rowband/cli/trace_files.h"
#include "rowband/cli/verify_layer.h"
#include "rowband/engines/host/machine.h"
#include "rowband/io/matrix_file.h"

namespace rowband::cli {
namespace {

constexpr int kDefaultRanks = 2;
constexpr const char* kOutputTensor = "output";

struct RunFlags {
  InputFlags input;
  std::optional<int> ranks;
  LayerFlags layer;
  PolicyFlags policy;
  EngineFlags engine;
  ScaleFormat activation_scales = ScaleFormat::kFp32;
  std::string path = "fused";
  int repeat = 1;
  bool verify = false;
  std::string output;
  std::string trace;
};

LayerOptions layer_options(const RunFlags& flags, std::int64_t rows) {
  LayerOptions options = flags.layer.resolve(rows);
  options.activation_scales = flags.activation_scales;
  flags.policy.apply_to(options.policy);
  if (flags.path == "base") options.policy.enabled = false;
  if (flags.path == "fused") options.policy = {.enabled = true, .min_rows = 0, .min_fill = 0};
  return options;
}

void check_output_names(const RunFlags& flags) {
  if (!flags.trace.empty()) require_svg_name("--trace", flags.trace);
  if (flags.output.empty()) return;
  if (!flags.output.ends_with(".npy") && !flags.output.ends_with(".safetensors")) {
    fail(ErrorCode::kInvalidArgument, "--output {}: the name must end in .npy or .safetensors",
         flags.output);
  }
}

bool is_fused(const LayerRun& run) {
  return run.layer.verdict(run.input.rows()).decision == Decision::kFuse;
}

std::string path_name(const LayerRun& run) {
  if (!is_fused(run)) {
    return fmt::format("base: GEMM, then {}", run.layer.all_reduce().description());
  }
  const LayerOptions& o = run.options;
  const std::string scales = o.wire == Wire::kBf16 ? ""
                             : o.gather_scale == GatherScale::kPerRow
                                 ? " (a scale per row)"
                                 : " (a scale per row and 128 columns)";
  return fmt::format("fused: wire {}{}, transport {}", wire_name(o.wire), scales,
                     transport_name(o.transport));
}

std::string path_text(const LayerRun& run) {
  if (!is_fused(run)) return path_name(run);
  return fmt::format("{}, at most {} chunks per band, window {} per rank", path_name(run),
                     run.layer.fused()->spec().chunks,
                     bytes_text(run.layer.fused()->window_bytes()));
}

void print_layer(const LayerRun& run) {
  const LayerInput& input = run.input;
  const int world = run.comm.size();
  fmt::print("layer    M={} N={} K={} per rank ({} in all), W={} rank{} as {}\n", input.rows(),
             input.cols(), input.depth(), input.total_depth(), world, world == 1 ? "" : "s",
             ranks_text(run.comm));
  fmt::print("weight   {}{}\n", input.weight_source(), run.bias.empty() ? "" : ", with bias");
  for (const std::string& note : input.notes()) fmt::print("         {}\n", note);
  fmt::print("input    {}\n", input.activation_source());
  fmt::print("engine   {}\n", run.engine->description());
  fmt::print("path     {}\n", path_text(run));
}

void print_times(const std::vector<CallTime>& times) {
  std::vector<double> ms, skew;
  for (const CallTime& time : times) {
    ms.push_back(time.ms);
    skew.push_back(time.skew_ms);
  }
  fmt::print(
      "time     {:.2f} ms{}, maximum over ranks, quantising included; they began {:.2f} ms apart\n",
      median(ms), times.size() == 1 ? "" : fmt::format(", median of {} calls", times.size()),
      median(skew));
}

void print_counters(const LayerRun& run) {
  const LayerCounters& counters = run.layer.counters();
  fmt::print("calls    {} fused", counters.of(Decision::kFuse));
  for (int i = 1; i < kDecisions; ++i) {
    const auto decision = static_cast<Decision>(i);
    if (counters.of(decision) == 0) continue;
    fmt::print(", {} declined ({})", counters.of(decision), decision_name(decision));
  }
  fmt::print("\n");
  if (const Verdict verdict = run.layer.verdict(run.input.rows()); !verdict.reason.empty()) {
    fmt::print("reason   {}\n", verdict.reason);
  }
}

bool print_checks(const std::vector<Check>& checks) {
  for (const Check& check : checks) {
    fmt::print("verify   {:<6} {}\n", check.ok ? "ok" : "FAILED", check.text);
  }
  return std::ranges::all_of(checks, &Check::ok);
}

void require_path(const RunFlags& flags, const RowParallelLinear& layer, std::int64_t rows) {
  const Verdict verdict = layer.verdict(rows);
  if (flags.path == "fused" && verdict.decision != Decision::kFuse) {
    const ErrorCode code = verdict.decision == Decision::kUnavailable ? ErrorCode::kUnavailable
                                                                      : ErrorCode::kInvalidArgument;
    fail(code, "--path fused: {}", verdict.reason);
  }
}

// After one that is not traced, since GPUs and their links sleep while results are verified.
void trace_a_call(LayerRun& run, const std::string& file) {
  const auto call = [&](Timeline* timeline) {
    run.comm.barrier(Deadline::after(run.options.deadline));
    run.layer.forward(run.engine_x.data, run.input.rows(), run.engine_x.row_stride, nullptr,
                      timeline);
    run.layer.finish();
  };
  Timeline own;
  call(nullptr);
  call(&own);
  const auto all = gather_timeline(run.comm, own, Deadline::after(run.options.deadline));
  if (run.comm.rank() != 0) return;
  write_trace_files(
      *all,
      fmt::format("rowband run: M={} N={} K={} W={}, {}", run.input.rows(), run.input.cols(),
                  run.input.depth(), run.comm.size(), path_name(run)),
      file);
  fmt::print("trace    {} and {}, of a further call\n", file, perfetto_path(file).string());
}

int run_on_rank(Communicator& comm, const RunFlags& flags, const LayerInput& input,
                const LayerOptions& options) {
  const auto deadline = [&] { return Deadline::after(options.deadline); };
  const bool leader = comm.rank() == 0;
  const auto engine = make_rank_engine(comm, flags.engine, deadline());
  auto weight = load_on_every_rank(comm, "reading the weight", deadline(),
                                   [&] { return input.weight(comm.rank()); });
  const auto bias =
      load_on_every_rank(comm, "reading the bias", deadline(), [&] { return input.bias(); });
  const ActivationSlice x = input.activations(comm.rank());
  const EngineActivations engine_x = load_on_every_rank(comm, "the activations", deadline(), [&] {
    return to_engine(*engine, x.data, input.rows(), input.depth(), x.row_stride);
  });
  const auto layer = RowParallelLinear::create(comm, engine, std::move(weight), bias, options);
  require_path(flags, *layer, input.rows());
  LayerRun run{comm,     engine, input,
               options,  *layer, x,
               engine_x, bias,   std::max(1, host::allowed_cores() / comm.size()),
               {}};
  if (leader) print_layer(run);

  std::vector<CallTime> times;
  Output result;  // on the host
  std::vector<Bf16> storage;
  const int calls = std::max(flags.repeat, flags.verify ? 2 : 1);  // two can be compared
  for (int i = 0; i < calls; ++i) {
    Output on_engine;
    times.push_back(time_call(comm, deadline(), [&] {
      on_engine = layer->forward(engine_x.data, input.rows(), engine_x.row_stride);
      layer->finish();
    }));
    result = to_host(*engine, on_engine, storage);
    run.call_rows.push_back(row_digests(result));
  }
  Bf16Matrix kept{result.rows, result.cols, {}};
  if (leader && !flags.output.empty()) {
    kept.values.assign(result.data, result.data + result.rows * result.cols);
  }
  if (leader) print_times(times);
  if (leader && flags.path == "auto") print_counters(run);

  const auto checks = flags.verify ? verify_layer(run, result) : std::vector<Check>();
  const bool ok = leader ? print_checks(checks) : std::ranges::all_of(checks, &Check::ok);
  if (!ok) return kFailed;
  if (!flags.trace.empty()) trace_a_call(run, flags.trace);
  if (leader && !flags.output.empty()) {
    write_matrix(flags.output, kept, kOutputTensor);
    fmt::print("output   {}: [{}, {}]\n", flags.output, kept.rows, kept.cols);
  }
  return kOk;
}

int run(const RunFlags& flags) {
  check_output_names(flags);
  const int world = world_size(flags.ranks, kDefaultRanks);
  const LayerInput input(flags.input, world);
  const LayerOptions options = layer_options(flags, input.rows());
  if (flags.path != "base") {
    require_expressible(options, flags.engine, input.cols(), input.depth(), world);
  }
  if (const auto status = run_in_own_processes(world, flags.engine)) return *status;
  return run_on_ranks(world,
                      [&](Communicator& comm) { return run_on_rank(comm, flags, input, options); });
}

}  // namespace

void add_run_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App& command = *program.add_subcommand("run", "Run one tensor-parallel linear layer");
  flags->input.add_to(command);
  add_ranks_option(command, flags->ranks, kDefaultRanks);
  flags->layer.add_to(command);
  flags->policy.add_to(command);
  flags->engine.add_to(command);
  add_scale_format_option(command, "--activation-scales", flags->activation_scales,
                          "Of the activations");
  command
      .add_option("--path", flags->path,
                  "fused, base, or auto: as the layer's policy decides (ROWBAND_FUSE and others)")
      ->check(CLI::IsMember({"fused", "base", "auto"}).description(""))
      ->capture_default_str()
      ->type_name("fused|base|auto");
  command.add_option("--repeat", flags->repeat, "Calls with the same input")
      ->check(CLI::Range(1, 1000000).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  command.add_flag(
      "--verify", flags->verify,
      "Check the result: float64 reference, same bits on all ranks, calls and M, ones");
  command
      .add_option("--output", flags->output, "Write the result: .npy (f32) or .safetensors (BF16)")
      ->type_name("FILE");
  command
      .add_option("--trace", flags->trace,
                  "Draw one call's timeline as FILE.svg, with FILE.perfetto.json beside it")
      ->type_name("FILE.svg");
  command.callback([flags, &chosen] { chosen = [flags] { return run(*flags); }; });
}

}  // namespace rowband::cli
