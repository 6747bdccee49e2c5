#include "rowband/cli/plan_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "rowband/base/fail.h"
#include "rowband/cli/options.h"
#include "rowband/cli/table.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

constexpr auto kLeft = Table::Align::kLeft;

std::string range_text(Range range) {
  return range.size() == 0 ? "none" : fmt::format("{}..{}", range.begin, range.end - 1);
}

ordered_json range_json(Range range) { return {{"begin", range.begin}, {"end", range.end}}; }

std::string verdict_text(const Verdict& verdict) {
  if (verdict.decision == Decision::kFuse) return "fuses";
  return fmt::format("declines ({}): {}", decision_name(verdict.decision), verdict.reason);
}

ordered_json verdict_json(const Verdict& verdict) {
  return {{"decision", decision_name(verdict.decision)}, {"reason", verdict.reason}};
}

std::string packed_text(const PlanSpec& spec) {
  if (!spec.packs_partials()) return "";
  if (spec.packed_chunks == spec.chunks) return ", partials packed";
  return fmt::format(", the partials of a band's first {} chunk{} packed", spec.packed_chunks,
                     spec.packed_chunks == 1 ? "" : "s");
}

FusionPolicy enabled(FusionPolicy policy) {
  policy.enabled = true;
  return policy;
}

}  // namespace

PlanReport::PlanReport(const LayerOptions& options, EngineKind engine,
                       const PlannerOptions& planner_options, std::int64_t rows, std::int64_t cols,
                       std::int64_t depth, int world)
    : policy_(options.policy), engine_(engine), rows_(rows) {
  const auto planner = make_planner(engine, planner_options);
  spec_ = GemmAllReduce::plan_spec(*planner, op_options(options, cols, depth), world);
  auto why = why_not_expressible(spec_);
  if (why.empty()) why = planner->why_not_served(spec_);
  if (!why.empty()) fail(ErrorCode::kInvalidArgument, "{}", why);
  tiles_at_once_ = planner->tiles_at_once();
  // The engine knows how large its control words are, and the plan everything else.
  window_ = plan_window(spec_, planner->window_bytes(spec_) - plan_window(spec_, 0).bytes);
  policy_ = with_measured_limits(policy_, engine_name(engine), spec_);
  verdict_ = decide(policy_, spec_, rows);
  verdict_if_enabled_ = decide(enabled(policy_), spec_, rows);
  if (rows <= spec_.max_rows) plan_.emplace(spec_, rows);
}

std::string PlanReport::text(bool with_tiles) const {
  std::string text = summary_text();
  if (plan_) text += bands_text() + order_text() + bytes_table();
  text += window_text();
  if (plan_ && with_tiles) text += tiles_text();
  return text;
}

std::string PlanReport::summary_text() const {
  std::string text = fmt::format(
      "call     M={} rows, N={} columns, K={} per rank ({} in all), W={} rank{}, engine {}\n"
      "wire     {}, transport {}, at most {} chunk{} per band, {} output slot{}{}\n",
      rows_, spec_.cols, spec_.depth, spec_.depth * spec_.world, spec_.world,
      spec_.world == 1 ? "" : "s", engine_name(engine_), wire_name(spec_.wire),
      transport_name(spec_.transport), spec_.chunks, spec_.chunks == 1 ? "" : "s", spec_.slots,
      spec_.slots == 1 ? "" : "s", packed_text(spec_));
  text += fmt::format("policy   {}\n", verdict_text(verdict_));
  if (!policy_.enabled) {
    text += fmt::format("         when on: {}\n", verdict_text(verdict_if_enabled_));
  }
  text += fmt::format("limits   min_rows={} rows, max_rows={} rows, min_fill={} of the bands",
                      *policy_.min_rows, spec_.max_rows, policy_.min_fill);
  if (!plan_) return text + "\n";
  text += fmt::format(", which M={} fills to {:.3f}\n", rows_, fill(spec_, rows_)) +
          fmt::format("tiles    {} rows x {} columns; {} x {} = {} per rank", plan_->tile_rows(),
                      spec_.tile_cols, plan_->row_tiles(), plan_->col_tiles(), plan_->tiles());
  if (tiles_at_once_ > 0) {
    text += fmt::format(", {:.1f} rounds of {} at a time (clusters of two SMs)",
                        static_cast<double>(plan_->tiles()) / tiles_at_once_, tiles_at_once_);
  }
  if (spec_.cost.workers > 0) {
    std::vector<std::string> times;
    for (std::int64_t height = spec_.tile_rows; height > 0; height = next_height(spec_, height)) {
      times.push_back(
          fmt::format("{:.0f} us in tiles of {}", expected_us(spec_, rows_, height), height));
    }
    text += fmt::format("\nexpected {} rows (a model that chooses the tiles' height)",
                        fmt::join(times, ", "));
  }
  return text + "\n";
}

std::string PlanReport::bands_text() const {
  Table table({{"owner"}, {"rows of the output", kLeft}, {"count"}, {"chunks, in rows", kLeft}});
  for (int owner = 0; owner < spec_.world; ++owner) {
    std::vector<std::string> chunks;
    for (int i = 0; i < plan_->chunks(owner); ++i) {
      chunks.push_back(fmt::format("{}", plan_->chunk(owner, i).size()));
    }
    const Range band = plan_->band(owner);
    table.add({fmt::format("{}", owner), range_text(band), fmt::format("{}", band.size()),
               chunks.empty() ? "none" : fmt::format("{}", fmt::join(chunks, " "))});
  }
  return "\nbands\n" + table.text();
}

std::string PlanReport::order_text() const {
  Table table({{"rank"},
               {"computes the bands of", kLeft},
               {"tiles for peers"},
               {"ahead of own"},
               {"own tiles"}});
  for (int rank = 0; rank < spec_.world; ++rank) {
    std::vector<int> peers;
    for (int position = 0; position + 1 < spec_.world; ++position) {
      peers.push_back(plan_->band_at(rank, position));
    }
    const std::int64_t for_peers = plan_->peer_tiles(rank);
    table.add({fmt::format("{}", rank),
               peers.empty() ? fmt::format("{} (its own)", rank)
                             : fmt::format("{}, then {} (its own)", fmt::join(peers, " "), rank),
               fmt::format("{}", for_peers), fmt::format("{}", plan_->order().mix(rank).ahead),
               fmt::format("{}", plan_->tiles() - for_peers)});
  }
  return "\ntile order\n" + table.text();
}

std::string PlanReport::bytes_table() const {
  Table table({{"rank"}, {"scatter"}, {"gather"}, {"both"}});
  for (int rank = 0; rank < spec_.world; ++rank) {
    const std::int64_t scatter = plan_->scatter_bytes(rank), gather = plan_->gather_bytes(rank);
    table.add({fmt::format("{}", rank), bytes_text(scatter), bytes_text(gather),
               bytes_text(scatter + gather)});
  }
  return fmt::format("\nbytes that leave each rank{}\n",
                     spec_.packs_partials() ? ", at least: some partials may not pack" : "") +
         table.text();
}

std::vector<PlanReport::Region> PlanReport::regions() const {
  const std::vector<std::pair<const char*, std::int64_t>> starts = {
      {"control", window_.control},
      {"received", window_.received},
      {"packing_heads", window_.packing_heads},
      {"staging", window_.staging},
      {"output", window_.output},
      {"gather_codes", window_.gather_codes},
      {"gather_scales", window_.gather_scales}};
  std::vector<Region> regions;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    const std::int64_t end = i + 1 < starts.size() ? starts[i + 1].second : window_.bytes;
    regions.push_back({starts[i].first, starts[i].second, end - starts[i].second});
  }
  return regions;
}

std::string PlanReport::window_text() const {
  Table table({{"region", kLeft}, {"size"}, {"bytes"}});
  for (const Region& region : regions()) {
    table.add({region.name, bytes_text(region.bytes), fmt::format("{}", region.bytes)});
  }
  table.add({"in all", bytes_text(window_.bytes), fmt::format("{}", window_.bytes)});
  return fmt::format("\nsymmetric window of each rank, for calls of up to {} rows\n",
                     spec_.max_rows) +
         table.text();
}

std::string PlanReport::tiles_text() const {
  Table table({{"rank"}, {"tile"}, {"band"}, {"chunk"}, {"rows", kLeft}, {"columns", kLeft}});
  for (int rank = 0; rank < spec_.world; ++rank) {
    for (std::int64_t index = 0; index < plan_->tiles(); ++index) {
      const Tile tile = plan_->tile(rank, index);
      table.add({fmt::format("{}", rank), fmt::format("{}", index), fmt::format("{}", tile.band),
                 fmt::format("{}", tile.chunk), range_text(tile.rows), range_text(tile.cols)});
    }
  }
  return "\ntiles\n" + table.text();
}

ordered_json PlanReport::json(bool with_tiles) const {
  ordered_json json = {{"rows", rows_},
                       {"cols", spec_.cols},
                       {"depth_per_rank", spec_.depth},
                       {"ranks", spec_.world},
                       {"engine", engine_name(engine_)},
                       {"wire", wire_name(spec_.wire)},
                       {"transport", transport_name(spec_.transport)},
                       {"gather_scale", gather_scale_name(spec_.gather_scale)},
                       {"slots", spec_.slots},
                       {"packed_chunks", spec_.packed_chunks},
                       {"max_rows", spec_.max_rows},
                       {"policy",
                        {{"enabled", policy_.enabled},
                         {"min_rows", *policy_.min_rows},
                         {"min_fill", policy_.min_fill},
                         {"verdict", verdict_json(verdict_)},
                         {"verdict_if_enabled", verdict_json(verdict_if_enabled_)}}}};
  ordered_json window = {{"bytes", window_.bytes}, {"regions", ordered_json::object()}};
  for (const Region& region : regions()) {
    window["regions"][region.name] = {{"offset", region.offset}, {"bytes", region.bytes}};
  }
  json["window"] = window;
  if (!plan_) return json;
  json["fill"] = fill(spec_, rows_);
  json["tile_rows"] = plan_->tile_rows();
  json["tile_cols"] = spec_.tile_cols;
  json["tiles_per_rank"] = plan_->tiles();
  if (tiles_at_once_ > 0) json["tiles_at_once"] = tiles_at_once_;
  if (spec_.cost.workers > 0) {
    for (std::int64_t height = spec_.tile_rows; height > 0; height = next_height(spec_, height)) {
      json["expected_us"][std::to_string(height)] = expected_us(spec_, rows_, height);
    }
  }
  for (int rank = 0; rank < spec_.world; ++rank) {
    ordered_json entry = {{"rank", rank}, {"band", range_json(plan_->band(rank))}};
    entry["chunks"] = ordered_json::array();
    for (int i = 0; i < plan_->chunks(rank); ++i) {
      entry["chunks"].push_back(range_json(plan_->chunk(rank, i)));
    }
    for (int position = 0; position < spec_.world; ++position) {
      entry["band_order"].push_back(plan_->band_at(rank, position));
    }
    entry["tiles_ahead_of_own"] = plan_->order().mix(rank).ahead;
    entry["scatter_bytes"] = plan_->scatter_bytes(rank);
    entry["gather_bytes"] = plan_->gather_bytes(rank);
    for (std::int64_t i = 0; with_tiles && i < plan_->tiles(); ++i) {
      const Tile tile = plan_->tile(rank, i);
      entry["tiles"].push_back({{"band", tile.band},
                                {"chunk", tile.chunk},
                                {"rows", range_json(tile.rows)},
                                {"cols", range_json(tile.cols)}});
    }
    json["per_rank"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace rowband::cli
