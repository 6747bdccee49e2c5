#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rowband/base/error.h"
#include "rowband/cli/doctor.h"
#include "rowband/cli/options.h"
#include "rowband/comm/nccl_comm.h"
#include "rowband/layer/fusion_table.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/engines/cuda/bandwidth.h"
#include "rowband/engines/cuda/cublas_gemm.h"
#include "rowband/engines/cuda/engine.h"
#include "rowband/engines/cuda/machine.h"
#endif

namespace rowband::cli {

using nlohmann::ordered_json;

#ifdef ROWBAND_HAVE_CUDA
namespace {

constexpr std::chrono::seconds kPairDeadline{20};  // of each of the two measurements
constexpr std::size_t kTransfer = std::size_t{256} << 20;
// What the policy's line speaks of.
constexpr std::int64_t kCols = 7168, kDepth = 2048, kMaxRows = 16384;

std::string gpu_text(const cuda::Gpu& gpu) {
  std::string text = fmt::format("{}, sm_{}{}, {} SMs, {} ({} free), PCI {}", gpu.name, gpu.major,
                                 gpu.minor, gpu.multiprocessors, bytes_text(gpu.bytes),
                                 bytes_text(gpu.free_bytes), gpu.pci_address);
  if (gpu.nvlinks) text += fmt::format(", {} NVLinks up", *gpu.nvlinks);
  if (!gpu.runs_the_kernels()) text += "; the kernels need sm_90, so the cuda engine declines it";
  return text;
}

// One GPU that can't be asked keeps nothing of the others back.
template <typename Text>
std::string text_or_why(const Text& text) {
  try {
    return text();
  } catch (const Error& error) {
    return error.what();
  }
}

template <typename Measure>
std::string rate_text(const Measure& measure) {
  return text_or_why([&] { return fmt::format("{:.0f} GB/s", measure()); });
}

std::string pair_text(int a, int b, bool measured) {
  const cuda::Access there = cuda::access(a, b), back = cuda::access(b, a);
  if (!there.possible || !back.possible) {
    return "no peer access: no window joins the two, so calls over both are declined";
  }
  std::string text =
      fmt::format("peer access, native atomics: {}", there.atomics && back.atomics ? "yes" : "no");
  if (!measured) return text;
  const auto deadline = [] { return Deadline::after(kPairDeadline); };
  return text +
         fmt::format("; both directions at once, each: copy engine {}, stores {}",
                     rate_text([&] { return cuda::copy_engine_rate(a, b, kTransfer, deadline()); }),
                     rate_text([&] { return cuda::store_rate(a, b, kTransfer, deadline()); }));
}

void add_declines(ordered_json& json) {
  const auto planner = make_planner(EngineKind::kCuda, {});
  for (const Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
    for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
      const PlanSpec spec = planner->with_tiles({.max_rows = kMaxRows,
                                                 .cols = kCols,
                                                 .depth = kDepth,
                                                 .world = 2,
                                                 .wire = wire,
                                                 .transport = transport});
      const std::string why = planner->why_not_served(spec);
      json[fmt::format("transport {}, wire {}", transport_name(transport), wire_name(wire))] =
          why.empty() ? fmt::format(
                            "served; fused from {} rows on at N={} K={} on two ranks, "
                            "the nearest that was measured",
                            measured_min_rows(engine_name(EngineKind::kCuda), spec), kCols, kDepth)
                      : "declined: " + why;
    }
  }
}

std::string or_why(std::string version, const std::string& why) {
  return version.empty() ? why : version;
}

}  // namespace

ordered_json describe_gpus(bool measured) {
  if (const std::string why = cuda::why_no_gpus(); !why.empty()) {
    return {{"GPUs", fmt::format("none: {}", why)}};
  }
  ordered_json json = ordered_json::object();
  const int gpus = cuda::device_count();
  for (int gpu = 0; gpu < gpus; ++gpu) {
    json[fmt::format("GPU {}", gpu)] =
        text_or_why([&] { return gpu_text(cuda::visible_gpu(gpu)); });
  }
  json["driver"] = text_or_why(cuda::driver_version);
  json["CUDA runtime"] = text_or_why(cuda::cuda_runtime_version);
  json["NCCL"] = or_why(comm::nccl_version(), comm::why_no_nccl());
  json["cuBLASLt"] = or_why(cuda::cublas_version(), cuda::why_no_cublas());
  for (int a = 0; a < gpus; ++a) {
    for (int b = a + 1; b < gpus; ++b) {
      json[fmt::format("GPUs {} and {}", a, b)] =
          text_or_why([&] { return pair_text(a, b, measured); });
    }
  }
  add_declines(json);
  return json;
}

#else

ordered_json describe_gpus(bool) {
  return {{"GPUs", "not looked for: this build has no cuda engine (ROWBAND_CUDA)"}};
}

#endif

}  // namespace rowband::cli
