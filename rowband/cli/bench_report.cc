#include "rowband/cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "rowband/cli/doctor.h"
#include "rowband/cli/plot.h"
#include "rowband/cli/table.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

constexpr auto kLeft = Table::Align::kLeft;

double base_ms(const ShapeResult& shape) {
  const ArmResult& base = shape.arms.front();
  return base.wrong.empty() ? median(base.ms) : 0;
}

std::string ms_text(const std::vector<double>& ms) {
  return ms.empty() ? "" : fmt::format("{:.3f}", median(ms));
}

std::string ratio_text(const ArmResult& arm, double base) {
  return base > 0 ? fmt::format("{:.3f}", median(arm.ms) / base) : "";
}

void add_row(Table& table, const ShapeResult& shape, const ArmResult& arm) {
  std::vector<std::string> cells = {fmt::format("{}", shape.rows), fmt::format("{}", shape.cols),
                                    fmt::format("{}", shape.depth), fmt::format("{}", shape.world),
                                    std::string(arm.spec.name)};
  const bool right = arm.wrong.empty();
  cells.push_back(right ? ms_text(arm.ms) : "wrong");
  cells.push_back(right ? ratio_text(arm, base_ms(shape)) : "");
  cells.push_back(ms_text(arm.skew_ms));
  cells.push_back(ms_text(arm.gemm_ms));
  cells.push_back(ms_text(arm.all_reduce_ms));
  cells.push_back(arm.spec.fused ? "" : fmt::format("{:.3f}", shape.quantize_ms));
  cells.push_back(fmt::format("{:.2e}", arm.relative_l2));
  table.add(std::move(cells));
}

ordered_json times_json(const std::vector<double>& ms) {
  const auto [least, most] = std::ranges::minmax(ms);
  return {{"median", median(ms)}, {"min", least}, {"max", most}, {"samples", ms}};
}

ordered_json arm_json(const ArmResult& arm, double base) {
  ordered_json json = {{"arm", arm.spec.name}, {"ok", arm.wrong.empty()}};
  if (arm.spec.fused) {
    json["wire"] = wire_name(arm.spec.wire);
    json["transport"] = transport_name(arm.spec.transport);
  }
  json["relative_l2"] = arm.relative_l2;
  json["same_bits_on_all_ranks"] = arm.same_bits;
  if (!arm.wrong.empty()) {
    json["error"] = arm.wrong;
    return json;
  }
  json["ms"] = times_json(arm.ms);
  json["skew_ms"] = times_json(arm.skew_ms);
  if (base > 0) json["ratio_to_base"] = median(arm.ms) / base;
  if (!arm.gemm_ms.empty()) {
    json["legs"] = {{"gemm_ms", times_json(arm.gemm_ms)},
                    {"all_reduce_ms", times_json(arm.all_reduce_ms)}};
  }
  return json;
}

}  // namespace

std::string sweep_notes(const SweepFlags& flags) {
  return fmt::format(
      "Times in ms: medians of the repetitions (base and fused in turn, A B A B), each the maximum "
      "over ranks,\nfrom when the last rank had begun; skew is how far apart the ranks began. The "
      "activations are quantised\nbefore the clock starts, {} sets of them in rotation; quantise "
      "is "
      "what that takes. rel. L2 is against float64.\n",
      flags.sets);
}

std::string sweep_markdown(const std::vector<ShapeResult>& results) {
  Table table({{"M"},
               {"N"},
               {"K"},
               {"W"},
               {"arm", kLeft},
               {"ms"},
               {"of base"},
               {"skew"},
               {"GEMM"},
               {"all-reduce"},
               {"quantise"},
               {"rel. L2"}});
  std::string errors;
  for (const ShapeResult& shape : results) {
    for (const ArmResult& arm : shape.arms) {
      add_row(table, shape, arm);
      if (arm.wrong.empty()) continue;
      errors += fmt::format("- M={} N={} K={} W={}, {}: {}\n", shape.rows, shape.cols, shape.depth,
                            shape.world, arm.spec.name, arm.wrong);
    }
  }
  return table.markdown() +
         (errors.empty() ? "" : "\nWrong, and therefore without times:\n\n" + errors);
}

ordered_json sweep_json(const SweepFlags& flags, const std::vector<ShapeResult>& results) {
  ordered_json json = {{"benchmark", "rowband bench"},
                       {"build", describe_build()},
                       {"machine", describe_machine()},
                       {"engine", describe_engine()},
                       {"seed", flags.seed},
                       {"activation_sets", flags.sets},
                       {"results", ordered_json::array()}};
  for (const ShapeResult& shape : results) {
    ordered_json entry = {{"rows", shape.rows},
                          {"cols", shape.cols},
                          {"depth", shape.depth},
                          {"ranks", shape.world},
                          {"quantize_ms", shape.quantize_ms}};
    for (const ArmResult& arm : shape.arms) entry["arms"].push_back(arm_json(arm, base_ms(shape)));
    json["results"].push_back(std::move(entry));
  }
  return json;
}

void plot_sweep(const std::vector<ShapeResult>& results, const std::filesystem::path& path) {
  const auto same = [&](auto field) {
    return std::ranges::all_of(results,
                               [&](const ShapeResult& s) { return s.*field == results[0].*field; });
  };
  const bool one_weight =
      same(&ShapeResult::cols) && same(&ShapeResult::depth) && same(&ShapeResult::world);
  const auto weight_text = [](const ShapeResult& s) {
    return fmt::format("N={} K={} W={}", s.cols, s.depth, s.world);
  };
  std::vector<PlotSeries> lines;
  std::map<std::string, std::size_t> line_of;
  for (const ShapeResult& shape : results) {
    for (const ArmResult& arm : shape.arms) {
      if (!arm.wrong.empty()) continue;
      const std::string name = one_weight
                                   ? std::string(arm.spec.name)
                                   : fmt::format("{}, {}", arm.spec.name, weight_text(shape));
      const auto [at, is_new] = line_of.try_emplace(name, lines.size());
      if (is_new) lines.push_back({name, {}, {}});
      lines[at->second].x.push_back(static_cast<double>(shape.rows));
      lines[at->second].y.push_back(median(arm.ms));
    }
  }
  const std::string title =
      "GEMM and all-reduce" + (one_weight ? ", " + weight_text(results[0]) : std::string());
  write_plot_svg(path, title, "M (rows)", "ms, maximum over ranks", lines, /*log2_x=*/true);
}

std::string sweep_failures(const std::vector<ShapeResult>& results) {
  std::ptrdiff_t wrong = 0;
  for (const ShapeResult& shape : results) {
    wrong += std::ranges::count_if(shape.arms, [](const ArmResult& a) { return !a.wrong.empty(); });
  }
  return wrong == 0 ? "" : fmt::format("{} result{} wrong", wrong, wrong == 1 ? " is" : "s are");
}

}  // namespace rowband::cli
