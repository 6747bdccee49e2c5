// Fused calls with answers known to the bit, which depend on rank, row and call.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rowband/comm/threads.h"
#include "rowband/engines/engine.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/numerics/quantize.h"
#include "rowband/op/gemm_all_reduce.h"
#include "rowband/testing/exact_values.h"

namespace rowband {

struct ExactWeight {
  std::int64_t cols, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;

  ExactWeight(std::int64_t n, std::int64_t k)
      : cols(n), depth(k), codes(n * k), scales(scale_blocks(n) * scale_blocks(k), 1.0f) {
    for (std::int64_t col = 0; col < n; ++col) {
      std::fill_n(codes.begin() + col * k, k, to_e4m3(static_cast<float>(exact_w(col))));
    }
  }
  WeightView view() const {
    return {codes.data(), cols, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

struct ExactActivations {
  std::int64_t rows, depth;
  std::vector<E4m3> codes;
  std::vector<float> scales;

  ExactActivations(std::int64_t m, std::int64_t k, int rank, std::int64_t call)
      : rows(m), depth(k), codes(m * k), scales(m * scale_blocks(k), 1.0f) {
    for (std::int64_t row = 0; row < m; ++row) {
      std::fill_n(codes.begin() + row * k, k, to_e4m3(exact_x(rank, row, call)));
    }
  }
  ActivationView view() const {
    return {codes.data(), rows, depth, depth, scales.data(), scale_blocks(depth), 1};
  }
};

// Empty when `y` is the exact answer, else the first difference.
inline std::string exact_difference(const Output& y, std::int64_t rows, std::int64_t depth,
                                    int world, std::int64_t call) {
  if (y.rows != rows) return "rows " + std::to_string(y.rows) + " for M=" + std::to_string(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (int rank = 0; rank < world; ++rank) sum += exact_x(rank, row, call);
    for (std::int64_t col = 0; col < y.cols; ++col) {
      const float want = sum * static_cast<float>(depth * exact_w(col));
      const float got = to_float(y.data[row * y.cols + col]);
      if (got != want) {
        return "row " + std::to_string(row) + " col " + std::to_string(col) + " is " +
               std::to_string(got) + ", should be " + std::to_string(want);
      }
    }
  }
  return "";
}

inline GemmAllReduceOptions exact_options(std::int64_t max_rows, std::int64_t cols,
                                          std::int64_t depth) {
  GemmAllReduceOptions options;
  options.max_rows = max_rows;
  options.cols = cols;
  options.depth = depth;
  options.deadline = std::chrono::seconds(60);
  return options;
}

inline std::shared_ptr<Engine> test_engine(int rank, int threads = 1) {
  return make_engine(EngineKind::kHost, rank, {.threads = threads, .gemm_kernel = ""});
}

// Runs body(comm, op) on `world` thread ranks, each with an op of these options.
inline void with_ops(int world, const GemmAllReduceOptions& options,
                     const std::function<void(Communicator&, GemmAllReduce&)>& body,
                     int threads = 1) {
  run_ranks(world, [&](Communicator& comm) {
    const auto op = GemmAllReduce::create(comm, test_engine(comm.rank(), threads), options);
    body(comm, *op);
  });
}

// One exact call; throws with the difference, so that run_ranks reports it.
inline void run_exact(Communicator& comm, GemmAllReduce& op, const ExactWeight& w,
                      std::int64_t rows, std::int64_t call, Bf16* out = nullptr) {
  const ExactActivations x(rows, w.depth, comm.rank(), call);
  const Output y = op.run(x.view(), w.view(), nullptr, out);
  const std::string difference = exact_difference(y, rows, w.depth, comm.size(), call);
  if (!difference.empty()) {
    throw std::runtime_error("rank " + std::to_string(comm.rank()) + ", M=" + std::to_string(rows) +
                             ", call " + std::to_string(call) + ": " + difference);
  }
}

// Every combination of wire, gather scale and transport.
inline std::vector<GemmAllReduceOptions> all_modes(const GemmAllReduceOptions& base) {
  std::vector<GemmAllReduceOptions> modes;
  for (Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
    for (int wire = 0; wire < 3; ++wire) {
      GemmAllReduceOptions options = base;
      options.transport = transport;
      options.wire = wire == 0 ? Wire::kBf16 : Wire::kFp8;
      options.gather_scale = wire == 2 ? GatherScale::kPerRowBlock : GatherScale::kPerRow;
      modes.push_back(options);
    }
  }
  return modes;
}

}  // namespace rowband
