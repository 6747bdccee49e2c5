#include "rowband/cli/gpu_bench_command.h"

#include <fmt/format.h>

#include "rowband/base/fail.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/gpu_bench_report.h"
#include "rowband/cli/ranks.h"
#include "rowband/trace/text_file.h"

namespace rowband::cli {
namespace {

std::vector<GpuShape> shapes_of(const GpuBenchRequest& request) {
  const SweepFlags& flags = request.flags;
  if (request.sweep) return sweep_shapes(flags.cols, flags.depths);
  if (!request.shapes_given) return target_shapes();
  std::vector<GpuShape> shapes;
  for (const std::int64_t cols : flags.cols) {
    for (const std::int64_t depth : flags.depths) {
      for (const std::int64_t rows : flags.rows) shapes.push_back({rows, cols, depth});
    }
  }
  return shapes;
}

GpuBenchFlags flags_of(const GpuBenchRequest& request) {
  const SweepFlags& from = request.flags;
  if (from.worlds.size() > 1) {
    fail(ErrorCode::kInvalidArgument, "--ranks: the engine cuda is timed with one W at a time");
  }
  GpuBenchFlags flags;
  flags.shapes = shapes_of(request);
  for (const ArmSpec& arm : from.arms) {
    if (arm.fused) flags.fused.push_back(arm);
  }
  if (!from.worlds.empty()) flags.ranks = from.worlds.front();
  flags.repeats = from.repeats;
  flags.seed = from.seed;
  flags.layer = from.layer;
  flags.engine = from.engine;
  return flags;
}

}  // namespace

int bench_on_gpus(const GpuBenchRequest& request) {
  const GpuBenchFlags flags = flags_of(request);
  const auto status = run_in_own_processes(gpu_bench_world(flags), flags.engine);
  if (status) return *status;
  const GpuBenchResult result = run_gpu_bench(flags);
  if (!is_first_process()) return kOk;
  std::string text = gpu_times_markdown(result) + "\n";
  if (const auto targets = gpu_targets_markdown(result); !targets.empty()) text += targets + "\n";
  if (!request.sweep) text += gpu_ceilings_markdown(result) + "\n";
  if (request.sweep) text += gpu_thresholds_text(result) + "\n";
  text += gpu_bench_notes(result);
  fmt::print("{}", text);
  const auto write = [](const std::string& path, const std::string& content) {
    if (path.empty()) return;
    write_text_file(path, content);
    fmt::print(stderr, "rowband: wrote {}\n", path);
  };
  write(request.markdown, text);
  write(request.json, gpu_bench_json(result).dump(2) + "\n");
  const std::string failures = gpu_bench_failures(result);
  if (failures.empty()) return kOk;
  fmt::print(stderr, "rowband: {}\n", failures);
  return kFailed;
}

}  // namespace rowband::cli
