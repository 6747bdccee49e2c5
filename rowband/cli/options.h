// Options that several subcommands share. One that is not given comes from its ROWBAND_* variable,
// and without that from the library's default.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "rowband/engines/engine.h"
#include "rowband/layer/row_parallel_linear.h"

namespace rowband::cli {

// How the fused path works.
struct LayerFlags {
  std::optional<std::int64_t> max_rows;
  std::optional<Wire> wire;
  std::optional<Transport> transport;
  std::optional<GatherScale> gather_scale;
  std::optional<int> chunks;
  std::optional<int> slots;
  std::optional<double> deadline_seconds;

  void add_to(CLI::App& command);
  void add_wire_to(CLI::App& command);  // part of add_to, for commands that choose the rest
  void add_transport_to(CLI::App& command);
  // The environment's settings, changed by what was given. The capacity, when neither states it, is
  // `rows`: a window no larger than the calls need. Throws Error(kInvalidArgument).
  LayerOptions resolve(std::int64_t rows) const;
};

// When the policy fuses.
struct PolicyFlags {
  std::optional<std::int64_t> min_rows;
  std::optional<double> min_fill;

  void add_to(CLI::App& command);
  void apply_to(FusionPolicy& policy) const;
};

// Asks for GPUs only when nothing was asked for.
inline EngineKind engine_or_default(std::optional<EngineKind> asked) {
  return asked ? *asked : default_engine();
}

enum class RanksAs { kThreads, kProcesses };

// What a rank is, and what it computes with.
struct EngineFlags {
  std::optional<RanksAs> ranks_as;
  std::optional<EngineKind> asked;
  int threads = 0;
  std::string gemm_kernel;

  void add_to(CLI::App& command);
  EngineKind kind() const { return engine_or_default(asked); }
  // For commands of the host engine alone, `command` among them: takes it when none was asked for;
  // Error(kInvalidArgument) when another was.
  void take_host(std::string_view command);
};

void add_engine_option(CLI::App& command, std::optional<EngineKind>& kind);

// The option for the number of ranks; under a launcher their number is that of the processes.
void add_ranks_option(CLI::App& command, std::optional<int>& ranks, int by_default);

// A deadline of `seconds`. Throws Error(kInvalidArgument) unless it is positive and at most a year.
std::chrono::nanoseconds deadline_of(double seconds);

// "fp32" or "ue8m0", exactly. Throws Error(kInvalidArgument) listing them.
ScaleFormat parse_scale_format(std::string_view text);
std::string_view scale_format_name(ScaleFormat format);
void add_scale_format_option(CLI::App& command, const std::string& name, ScaleFormat& format,
                             const std::string& description);

// The op that a layer with these options makes for a weight of [cols, depth] per rank.
GemmAllReduceOptions op_options(const LayerOptions& layer, std::int64_t cols, std::int64_t depth);

// Throws Error(kInvalidArgument), before anything is allocated, when the fused path could not be
// made for any machine: bad settings, shapes, or a kernel that this CPU does not run.
void require_expressible(const LayerOptions& layer, const EngineFlags& engine, std::int64_t cols,
                         std::int64_t depth, int world);

// A number of bytes for people: "117.4 MiB".
std::string bytes_text(std::int64_t bytes);

}  // namespace rowband::cli
