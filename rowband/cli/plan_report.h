// The plan of one call and the policy's verdict on it, for people and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "rowband/layer/row_parallel_linear.h"

namespace rowband::cli {

class PlanReport {
 public:
  // Throws Error(kInvalidArgument) when calls of this shape cannot be planned, with the legal
  // values.
  PlanReport(const LayerOptions& options, EngineKind engine, const PlannerOptions& planner,
             std::int64_t rows, std::int64_t cols, std::int64_t depth, int world);

  std::string text(bool with_tiles) const;
  nlohmann::ordered_json json(bool with_tiles) const;

 private:
  struct Region {
    std::string name;
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  std::string summary_text() const;
  std::string bands_text() const;
  std::string order_text() const;
  std::string bytes_table() const;
  std::string window_text() const;
  std::string tiles_text() const;
  std::vector<Region> regions() const;

  FusionPolicy policy_;  // with its min_rows
  const EngineKind engine_;
  const std::int64_t rows_;
  int tiles_at_once_ = 0;
  PlanSpec spec_;
  WindowLayout window_;
  Verdict verdict_;
  Verdict verdict_if_enabled_;
  std::optional<CallPlan> plan_;  // none beyond the capacity
};

}  // namespace rowband::cli
