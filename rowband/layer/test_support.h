// What the tests of this room share: weights of both kinds, exact calls, the log as text.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/layer/row_parallel_linear.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/operands.h"

namespace rowband {

// From ExactWeight, RandomWeight or ConstantWeight: this rank's slice, standing for the whole.
template <typename Weight>
Fp8Weight to_slice(const Weight& w) {
  Fp8Weight slice;
  slice.cols = w.cols;
  slice.depth = slice.total_depth = w.depth;
  slice.codes = w.codes;
  slice.scales = w.scales;
  return slice;
}

// The activations of rowband/testing/exact.h before they are quantised.
inline std::vector<Bf16> exact_bf16(std::int64_t rows, std::int64_t depth, int rank,
                                    std::int64_t call) {
  std::vector<Bf16> x(static_cast<std::size_t>(rows * depth));
  for (std::int64_t i = 0; i < rows * depth; ++i) {
    x[i] = to_bf16(exact_x(rank, i / depth, call));
  }
  return x;
}

// Short waits, and a policy that fuses every call of at least 64 rows.
inline LayerOptions layer_options(std::int64_t max_rows) {
  LayerOptions options;
  options.max_rows = max_rows;
  options.policy.enabled = true;
  options.policy.min_rows = 64;
  options.deadline = std::chrono::seconds(60);
  return options;
}

inline std::unique_ptr<RowParallelLinear> make_exact_layer(Communicator& comm, std::int64_t cols,
                                                           std::int64_t depth,
                                                           const LayerOptions& options) {
  return RowParallelLinear::create(comm, test_engine(comm.rank()),
                                   to_slice(ExactWeight(cols, depth)), {}, options);
}

// One exact call; throws with the difference, so that run_ranks reports it.
inline Output forward_exact(Communicator& comm, RowParallelLinear& layer, std::int64_t rows,
                            std::int64_t call, Bf16* out = nullptr) {
  const std::int64_t depth = layer.weight().depth;
  const auto x = exact_bf16(rows, depth, comm.rank(), call);
  const Output y = layer.forward(x.data(), rows, depth, out);
  const std::string difference = exact_difference(y, rows, depth, comm.size(), call);
  if (!difference.empty()) {
    throw std::runtime_error("rank " + std::to_string(comm.rank()) + ", M=" + std::to_string(rows) +
                             ", call " + std::to_string(call) + ": " + difference);
  }
  return y;
}

// While it lives, what the library logs is kept here instead of being printed.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_, /*force_flush=*/true);
    auto logger = std::make_shared<spdlog::logger>("captured", std::move(sink));
    logger->set_pattern("%l: %v");
    spdlog::set_default_logger(std::move(logger));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  // To be asked when no rank runs.
  std::vector<std::string> lines_with(const std::string& words) const {
    std::vector<std::string> lines;
    std::istringstream all(text_.str());
    for (std::string line; std::getline(all, line);) {
      if (line.find(words) != std::string::npos) lines.push_back(line);
    }
    return lines;
  }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

// What body throws on each rank; an empty text where it throws nothing.
struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};

inline std::vector<Failure> failures(int world, const std::function<void(Communicator&)>& body) {
  std::vector<Failure> all(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    try {
      body(comm);
    } catch (const Error& error) {
      all[comm.rank()] = {error.code(), error.what()};
    }
  });
  return all;
}

}  // namespace rowband
