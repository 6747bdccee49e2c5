#include "rowband/cli/gpu_bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "rowband/cli/doctor.h"
#include "rowband/cli/gpu_arms.h"
#include "rowband/cli/measure.h"
#include "rowband/cli/table.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;
using Samples = std::vector<double> GpuTimes::*;

constexpr auto kLeft = Table::Align::kLeft;
constexpr std::array<std::pair<const char*, Samples>, 2> kTimings = {
    {{"back to back", &GpuTimes::queued}, {"single call", &GpuTimes::single}}};

enum class What { kBf16, kFp8, kBound, kGemm };

struct Target {
  GpuShape shape;
  What what;
  double at_most;
};

constexpr GpuShape kMain{16384, 7168, 2048}, kDeep{16384, 7168, 8192};
constexpr Target kTargets[] = {
    {kMain, What::kBf16, 0.52},
    {kMain, What::kFp8, 0.42},
    {kMain, What::kBound, 1.10},
    {kDeep, What::kBf16, 0.68},
    {{4096, 7168, 2048}, What::kBf16, 0.50},
    {{1024, 7168, 2048}, What::kBf16, 0.55},
    {{16384, 5120, 2048}, What::kBf16, 0.55},
    {kMain, What::kGemm, 0.95},
    {kDeep, What::kGemm, 0.95},
};

std::string_view what_text(What what) {
  switch (what) {
    case What::kBf16:
      return "fused, bf16 wire / base path";
    case What::kFp8:
      return "fused, fp8 gather / base path";
    case What::kBound:
      return "fused, bf16 wire / max(own GEMM, link)";
    case What::kGemm:
      return "own GEMM / cuBLASLt's";
  }
  return "unknown";
}

std::string shape_text(const GpuShape& s) {
  return fmt::format("{} x {} x {}", s.rows, s.cols, s.depth);
}

double time_of(const GpuArmResult* arm, Samples samples) {
  return arm == nullptr ? 0 : median(arm->us.*samples);
}

// The fastest right arm of a wire, back to back; null when there is none.
const GpuArmResult* best_fused(const GpuShapeResult& shape, Wire wire) {
  const GpuArmResult* best = nullptr;
  for (const GpuArmResult& arm : shape.arms) {
    if (!arm.fused || arm.fused->wire != wire || !arm.timed()) continue;
    if (best == nullptr || median(arm.us.queued) < median(best->us.queued)) best = &arm;
  }
  return best;
}

double link_us(std::int64_t bytes, double gigabytes_per_second) {
  return gigabytes_per_second > 0 ? static_cast<double>(bytes) / (1e3 * gigabytes_per_second) : 0;
}

double ratio(double time, double of) { return time > 0 && of > 0 ? time / of : 0; }

// 0 when one of the two was not measured.
double ratio_of(const GpuShapeResult& shape, What what, Samples samples, double copy_rate) {
  const auto time = [&](const char* name) { return time_of(shape.find(name), samples); };
  switch (what) {
    case What::kBf16:
      return ratio(time_of(best_fused(shape, Wire::kBf16), samples), time(kBaseArm));
    case What::kFp8:
      return ratio(time_of(best_fused(shape, Wire::kFp8), samples), time(kBaseArm));
    case What::kBound:
      if (!(copy_rate > 0)) return 0;
      return ratio(time_of(best_fused(shape, Wire::kBf16), samples),
                   std::max(time(kOwnGemmArm), link_us(shape.bytes_bf16, copy_rate)));
    case What::kGemm:
      return ratio(time(kOwnGemmArm), time(kCublasArm));
  }
  return 0;
}

std::string rate_text(double rate) {
  return rate > 0 ? fmt::format("{:.0f} GB/s", rate) : "not measured";
}

std::string ratio_text(double r) { return r > 0 ? fmt::format("{:.3f}", r) : "-"; }

using Weight = std::pair<std::int64_t, std::int64_t>;  // N, K

std::map<Weight, std::vector<const GpuShapeResult*>> by_weight(const GpuBenchResult& result) {
  std::map<Weight, std::vector<const GpuShapeResult*>> weights;
  for (const GpuShapeResult& shape : result.shapes) {
    weights[{shape.shape.cols, shape.shape.depth}].push_back(&shape);
  }
  for (auto& [weight, shapes] : weights) {
    std::ranges::sort(shapes, {}, [](const GpuShapeResult* s) { return s->shape.rows; });
  }
  return weights;
}

}  // namespace

std::vector<GpuShape> target_shapes() {
  std::vector<GpuShape> shapes;
  for (const Target& target : kTargets) {
    if (std::ranges::find(shapes, target.shape) == shapes.end()) shapes.push_back(target.shape);
  }
  return shapes;
}

std::vector<GpuShape> sweep_shapes(const std::vector<std::int64_t>& cols,
                                   const std::vector<std::int64_t>& depths) {
  std::vector<GpuShape> shapes;
  for (const std::int64_t n : cols) {
    for (const std::int64_t k : depths) {
      for (std::int64_t rows = 1; rows <= 32768; rows *= 2) {
        shapes.push_back({rows, n, k});
        if (rows >= 64 && rows < 32768) shapes.push_back({rows + rows / 2, n, k});
      }
    }
  }
  return shapes;
}

std::string gpu_times_markdown(const GpuBenchResult& result) {
  if (result.shapes.empty()) return "";
  std::vector<Table::Column> columns = {{"M x N x K", kLeft}, {"us", kLeft}};
  for (const GpuArmResult& arm : result.shapes.front().arms) columns.push_back({arm.name});
  columns.push_back({"link, bf16"});
  columns.push_back({"link, fp8"});
  Table table(columns);
  std::string wrong;
  for (const GpuShapeResult& shape : result.shapes) {
    for (const auto& [name, samples] : kTimings) {
      std::vector<std::string> cells = {shape_text(shape.shape), name};
      for (const GpuArmResult& arm : shape.arms) {
        cells.push_back(arm.timed()         ? fmt::format("{:.1f}", median(arm.us.*samples))
                        : arm.wrong.empty() ? "-"
                                            : "wrong");
      }
      const auto link = [&](std::int64_t bytes) {
        const double us = link_us(bytes, result.copy_rate);
        return us > 0 ? fmt::format("{:.1f}", us) : "-";
      };
      cells.push_back(link(shape.bytes_bf16));
      cells.push_back(link(shape.bytes_fp8));
      table.add(std::move(cells));
    }
    for (const GpuArmResult& arm : shape.arms) {
      if (arm.timed()) continue;
      wrong +=
          fmt::format("- {}, {}: {}{}\n", shape_text(shape.shape), arm.name, arm.wrong, arm.absent);
    }
  }
  return table.markdown() + (wrong.empty() ? "" : "\nWithout times:\n\n" + wrong);
}

std::string gpu_targets_markdown(const GpuBenchResult& result) {
  Table table({{"M x N x K", kLeft},
               {"what", kLeft},
               {"back to back"},
               {"single call"},
               {"at most"},
               {"met", kLeft}});
  bool any = false;
  for (const Target& target : kTargets) {
    for (const GpuShapeResult& shape : result.shapes) {
      if (shape.shape != target.shape) continue;
      any = true;
      const double queued = ratio_of(shape, target.what, &GpuTimes::queued, result.copy_rate);
      const double single = ratio_of(shape, target.what, &GpuTimes::single, result.copy_rate);
      const auto met = [&](double r) { return r > 0 && r <= target.at_most; };
      table.add({shape_text(target.shape), std::string(what_text(target.what)), ratio_text(queued),
                 ratio_text(single), fmt::format("{:.2f}", target.at_most),
                 !(queued > 0)                ? "not measured"
                 : met(queued) && met(single) ? "yes"
                 : met(queued)                ? "back to back"
                 : met(single)                ? "single call"
                                              : "no"});
    }
  }
  return any ? table.markdown() : "";
}

std::string gpu_ceilings_markdown(const GpuBenchResult& result) {
  Table table({{"M x N x K", kLeft},
               {"what", kLeft},
               {"TFLOP/s"},
               {"of cuBLASLt's"},
               {"GB/s"},
               {"of the copy engine's"},
               {"of stores'"}});
  const auto share = [](double of) { return of > 0 ? fmt::format("{:.2f}", of) : "-"; };
  for (const GpuShapeResult& shape : result.shapes) {
    const double work = 2e-6 * static_cast<double>(shape.shape.rows) *
                        static_cast<double>(shape.shape.cols) *
                        static_cast<double>(shape.shape.depth);
    const double cublas = time_of(shape.find(kCublasArm), &GpuTimes::queued);
    const auto add = [&](std::string what, double us, std::int64_t bytes) {
      if (!(us > 0)) return;
      const double rate = static_cast<double>(bytes) / (1e3 * us);
      table.add({shape_text(shape.shape), std::move(what), fmt::format("{:.0f}", work / us),
                 share(ratio(cublas, us)), bytes > 0 ? fmt::format("{:.0f}", rate) : "-",
                 share(ratio(rate, result.copy_rate)), share(ratio(rate, result.store_rate))});
    };
    add("own GEMM", time_of(shape.find(kOwnGemmArm), &GpuTimes::queued), 0);
    for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
      const GpuArmResult* arm = best_fused(shape, wire);
      if (arm == nullptr) continue;
      add(arm->name, time_of(arm, &GpuTimes::queued),
          wire == Wire::kBf16 ? shape.bytes_bf16 : shape.bytes_fp8);
    }
  }
  return table.markdown();
}

std::string gpu_thresholds_text(const GpuBenchResult& result) {
  std::string text;
  for (const auto& [weight, shapes] : by_weight(result)) {
    for (const auto& [name, samples] : kTimings) {
      std::int64_t from = 0;
      std::string slower;
      for (const GpuShapeResult* shape : shapes) {
        const double r = ratio_of(*shape, What::kBf16, samples, result.copy_rate);
        const bool wins = r > 0 && r <= 1;
        if (!wins) from = 0;
        if (wins && from == 0) from = shape->shape.rows;
        if (!wins && shape->verdict.decision == Decision::kFuse) {
          slower += fmt::format("{}M={} ({})", slower.empty() ? "" : ", ", shape->shape.rows,
                                ratio_text(r));
        }
      }
      text += fmt::format("N={} K={} W={}, {}: ", weight.first, weight.second, result.world, name);
      text += from > 0 ? fmt::format("fused is no slower from M={} on", from)
                       : "fused is slower at the largest M too";
      text += slower.empty() ? "; the policy fuses no slower call\n"
                             : fmt::format("; the policy fuses slower calls: {}\n", slower);
    }
  }
  return text;
}

std::string gpu_bench_notes(const GpuBenchResult& result) {
  std::string text = fmt::format(
      "{}; W={}. {}.\n"
      "The base path's all-reduce: {}. Copy engine, both directions at once, best of this run: {}; "
      "stores: {}.\n"
      "The fused kernels: {}.\n"
      "Medians, arms in turn (A B A B), the maximum over ranks, operands rotated past the L2. Back "
      "to back: of several\ncalls queued behind another, the GPUs' time for one. Single call: GPUs "
      "idle, from a barrier to the host's\nknowing it done, launch included. Each arm's result was "
      "compared with another's, and the ranks' with each\nother, before and after.\n",
      result.engine, result.world, result.libraries, result.all_reduce, rate_text(result.copy_rate),
      rate_text(result.store_rate), result.kernels);
  for (const std::string& why : result.not_served) text += fmt::format("Not served: {}\n", why);
  return text;
}

ordered_json gpu_bench_json(const GpuBenchResult& result) {
  ordered_json json = {{"benchmark", "rowband bench --engine cuda"},
                       {"build", describe_build()},
                       {"machine", describe_machine()},
                       {"engine", result.engine},
                       {"libraries", result.libraries},
                       {"all_reduce", result.all_reduce},
                       {"ranks", result.world},
                       {"kernels", result.kernels},
                       {"copy_engine_gb_per_s", result.copy_rate},
                       {"stores_gb_per_s", result.store_rate},
                       {"not_served", result.not_served},
                       {"results", ordered_json::array()}};
  for (const GpuShapeResult& shape : result.shapes) {
    ordered_json entry = {
        {"rows", shape.shape.rows},     {"cols", shape.shape.cols},
        {"depth", shape.shape.depth},   {"bytes_bf16", shape.bytes_bf16},
        {"bytes_fp8", shape.bytes_fp8}, {"policy", decision_name(shape.verdict.decision)}};
    for (const GpuArmResult& arm : shape.arms) {
      ordered_json one = {{"arm", arm.name}, {"ok", arm.wrong.empty()}};
      one["relative_l2"] = arm.difference;
      one["compared_with"] = arm.like;
      if (arm.timed()) {
        one["queued_us"] = {{"median", median(arm.us.queued)}, {"samples", arm.us.queued}};
        one["single_us"] = {{"median", median(arm.us.single)}, {"samples", arm.us.single}};
      } else {
        one[arm.wrong.empty() ? "not_served" : "error"] = arm.wrong + arm.absent;
      }
      entry["arms"].push_back(std::move(one));
    }
    json["results"].push_back(std::move(entry));
  }
  return json;
}

std::string gpu_bench_failures(const GpuBenchResult& result) {
  std::ptrdiff_t wrong = 0;
  for (const GpuShapeResult& shape : result.shapes) {
    wrong +=
        std::ranges::count_if(shape.arms, [](const GpuArmResult& a) { return !a.wrong.empty(); });
  }
  return wrong == 0 ? "" : fmt::format("{} result{} wrong", wrong, wrong == 1 ? " is" : "s are");
}

}  // namespace rowband::cli
