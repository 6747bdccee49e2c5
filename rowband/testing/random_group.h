// Random operands of all ranks of a group, and their float64 reference.
#pragma once

#include <vector>

#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband {

struct RandomGroup {
  int world;
  std::int64_t rows, cols, depth;
  std::vector<RandomActivations> xs;  // by rank
  std::vector<RandomWeight> ws;
  std::vector<Bf16> bias;

  RandomGroup(int w, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed)
      : world(w), rows(m), cols(n), depth(k), bias(random_bf16(n, seed + 1000)) {
    for (int rank = 0; rank < w; ++rank) {
      xs.emplace_back(m, k, seed + rank);
      ws.emplace_back(n, k, seed + 100 + rank);
    }
  }

  ActivationView x(int rank, std::int64_t m) const {
    ActivationView view = xs[rank].view();
    view.rows = m;
    return view;
  }

  // `b` is null or bias.data().
  std::vector<double> reference(const Bf16* b, int threads = 2) const {
    std::vector<ActivationView> x;
    std::vector<WeightView> w;
    std::vector<std::int64_t> wanted;
    for (int rank = 0; rank < world; ++rank) {
      x.push_back(xs[rank].view());
      w.push_back(ws[rank].view());
    }
    for (std::int64_t row = 0; row < rows; ++row) wanted.push_back(row);
    return reference_rows(x, w, b, wanted, threads);
  }
};

}  // namespace rowband
