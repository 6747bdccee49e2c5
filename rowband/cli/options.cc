#include "rowband/cli/options.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "rowband/base/fail.h"
#include "rowband/layer/environment.h"

namespace rowband::cli {
namespace {

// An option whose text one of the library's parsers reads, so that the legal names stand in one
// place.
template <typename T, typename Parse>
void add_named(CLI::App& command, const std::string& name, std::optional<T>& value, Parse parse,
               const std::string& type_name, const std::string& description) {
  command
      .add_option_function<std::string>(
          name, [&value, parse](const std::string& text) { value = parse(text); }, description)
      ->type_name(type_name);
}

RanksAs parse_ranks_as(std::string_view text) {
  if (text == "threads") return RanksAs::kThreads;
  if (text == "processes") return RanksAs::kProcesses;
  fail(ErrorCode::kInvalidArgument, "--ranks-as '{}' is not one of 'threads', 'processes'", text);
}

}  // namespace

void LayerFlags::add_to(CLI::App& command) {
  add_wire_to(command);
  add_transport_to(command);
  add_named(command, "--gather-scale", gather_scale, parse_gather_scale, "row|block",
            "fp8 wire: one scale per row, or per 128 columns of it");
  command.add_option("--chunks", chunks, "Most chunks per band: what travels and is signalled")
      ->type_name("COUNT");
  command
      .add_option("--slots", slots, "Output slots: a result lives through the next slots - 1 calls")
      ->type_name("COUNT");
  command.add_option("--max-rows", max_rows, "Capacity of the fused path")->type_name("ROWS");
  command.add_option("--deadline", deadline_seconds, "Of every wait")->type_name("SECONDS");
}

void LayerFlags::add_wire_to(CLI::App& command) {
  add_named(command, "--wire", wire, parse_wire, "bf16|fp8", "Format of the gather leg");
}

void LayerFlags::add_transport_to(CLI::App& command) {
  add_named(command, "--transport", transport, parse_transport, "copy_engine|direct",
            "Who moves the bytes");
}

LayerOptions LayerFlags::resolve(std::int64_t rows) const {
  LayerOptions options = LayerOptions::from_environment();
  if (max_rows) {
    options.max_rows = *max_rows;
  } else if (!environment_text("ROWBAND_MAX_ROWS")) {
    options.max_rows = std::max<std::int64_t>(rows, 1);
  }
  if (wire) options.wire = *wire;
  if (transport) options.transport = *transport;
  if (gather_scale) options.gather_scale = *gather_scale;
  if (chunks) options.chunks = *chunks;
  if (slots) options.slots = *slots;
  if (deadline_seconds) options.deadline = deadline_of(*deadline_seconds);
  return options;
}

void PolicyFlags::add_to(CLI::App& command) {
  command.add_option("--min-rows", min_rows, "The policy fuses calls of at least so many rows")
      ->type_name("ROWS");
  command
      .add_option("--min-fill", min_fill, "The policy fuses when bands are at least so even, 0..1")
      ->check(CLI::Range(0.0, 1.0).description(""))
      ->type_name("FRACTION");
}

void PolicyFlags::apply_to(FusionPolicy& policy) const {
  if (min_rows) policy.min_rows = *min_rows;
  if (min_fill) policy.min_fill = *min_fill;
}

void EngineFlags::add_to(CLI::App& command) {
  add_engine_option(command, asked);
  add_named(command, "--ranks-as", ranks_as, parse_ranks_as, "threads|processes",
            "Processes where each rank gets a GPU of its own, else threads. mpirun and torchrun "
            "start the processes themselves");
  command.add_option("--threads", threads, "Compute threads per rank; 0 deals the cores out")
      ->check(CLI::Range(0, 4096).description(""))
      ->type_name("COUNT");
  command
      .add_option("--gemm-kernel", gemm_kernel,
                  "By name; the best that this CPU runs otherwise (see rowband doctor)")
      ->type_name("NAME");
}

void EngineFlags::take_host(std::string_view command) {
  if (asked && *asked != EngineKind::kHost) {
    fail(ErrorCode::kInvalidArgument, "--engine {}: {} runs on the engine host",
         engine_name(*asked), command);
  }
  asked = EngineKind::kHost;
}

void add_engine_option(CLI::App& command, std::optional<EngineKind>& kind) {
  add_named(command, "--engine", kind, parse_engine, "host|cuda",
            "What computes and moves the bytes: cuda where there is a Hopper GPU, else host");
}

void add_ranks_option(CLI::App& command, std::optional<int>& ranks, int by_default) {
  command
      .add_option("--ranks", ranks,
                  fmt::format("World size; {} when not given. Under mpirun and torchrun it is the "
                              "number of their processes",
                              by_default))
      ->type_name("W");
}

std::chrono::nanoseconds deadline_of(double seconds) {
  constexpr double kYear = 365.0 * 24 * 3600;
  if (!(seconds > 0.0) || seconds > kYear) {
    fail(ErrorCode::kInvalidArgument, "deadline {} s: must be positive and at most {} s (a year)",
         seconds, kYear);
  }
  return std::chrono::nanoseconds(std::llround(seconds * 1e9));
}

ScaleFormat parse_scale_format(std::string_view text) {
  if (text == "fp32") return ScaleFormat::kFp32;
  if (text == "ue8m0") return ScaleFormat::kUe8m0;
  fail(ErrorCode::kInvalidArgument, "scale format '{}' is not one of 'fp32', 'ue8m0'", text);
}

std::string_view scale_format_name(ScaleFormat format) {
  return format == ScaleFormat::kFp32 ? "fp32" : "ue8m0";
}

void add_scale_format_option(CLI::App& command, const std::string& name, ScaleFormat& format,
                             const std::string& description) {
  command
      .add_option_function<std::string>(
          name, [&format](const std::string& text) { format = parse_scale_format(text); },
          description)
      ->type_name("fp32|ue8m0")
      ->default_str(std::string(scale_format_name(format)));
}

GemmAllReduceOptions op_options(const LayerOptions& layer, std::int64_t cols, std::int64_t depth) {
  return {.max_rows = layer.max_rows,
          .cols = cols,
          .depth = depth,
          .wire = layer.wire,
          .transport = layer.transport,
          .gather_scale = layer.gather_scale,
          .chunks = layer.chunks,
          .slots = layer.slots,
          .deadline = layer.deadline,
          .faults = layer.faults};
}

void require_expressible(const LayerOptions& layer, const EngineFlags& engine, std::int64_t cols,
                         std::int64_t depth, int world) {
  if (engine.kind() == EngineKind::kHost) {  // knows its kernels by name only when it is made
    make_engine(EngineKind::kHost, 0, {.threads = 1, .gemm_kernel = engine.gemm_kernel});
  }
  const auto planner = make_planner(engine.kind(), {});
  const PlanSpec spec = GemmAllReduce::plan_spec(*planner, op_options(layer, cols, depth), world);
  auto why = why_not_expressible(spec);
  if (why.empty()) why = planner->why_not_served(spec);
  if (!why.empty()) fail(ErrorCode::kInvalidArgument, "{}", why);
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double amount = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; amount >= 1024 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  return fmt::format("{:.1f} {}", amount, kUnits[unit]);
}

}  // namespace rowband::cli
