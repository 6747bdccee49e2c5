// LayerOptions::from_environment: every variable of the layer, and nothing else.
#include <cmath>

#include "rowband/base/fail.h"
#include "rowband/layer/environment.h"
#include "rowband/layer/row_parallel_linear.h"

namespace rowband {
namespace {

template <typename T, typename U>
void assign(T& field, const std::optional<U>& value) {
  if (value) field = static_cast<T>(*value);
}

// A text by one of the parsers of plan.h, whose errors do not know the variable.
template <typename T>
void assign_parsed(T& field, const char* name, T (*parse)(std::string_view)) {
  const auto text = environment_text(name);
  if (!text) return;
  try {
    field = parse(*text);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", name, error.what());
  }
}

constexpr double kLongestDeadlineSeconds = 86400;

}  // namespace

LayerOptions LayerOptions::from_environment() {
  LayerOptions o;
  assign(o.policy.enabled, environment_flag("ROWBAND_FUSE"));
  assign(o.policy.min_rows, environment_integer("ROWBAND_MIN_ROWS", 0, INT64_MAX));
  assign(o.policy.min_fill, environment_number("ROWBAND_MIN_FILL", 0, 1));
  assign(o.max_rows, environment_integer("ROWBAND_MAX_ROWS", 1, INT64_MAX));
  if (environment_flag("ROWBAND_FP8_GATHER").value_or(false)) o.wire = Wire::kFp8;
  assign_parsed(o.transport, "ROWBAND_TRANSPORT", parse_transport);
  assign_parsed(o.gather_scale, "ROWBAND_GATHER_SCALE", parse_gather_scale);
  assign(o.chunks, environment_integer("ROWBAND_CHUNKS", 1, 64));
  if (auto seconds = environment_number("ROWBAND_DEADLINE", 0.001, kLongestDeadlineSeconds)) {
    o.deadline = std::chrono::nanoseconds(std::llround(*seconds * 1e9));
  }
  assign(o.debug_check, environment_flag("ROWBAND_DEBUG_CHECK"));
  assign(o.shape_log, environment_flag("ROWBAND_SHAPE_LOG"));
  return o;
}

}  // namespace rowband
