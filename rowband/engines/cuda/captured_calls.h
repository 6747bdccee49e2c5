// Test code: calls of an op, captured into a graph.
#pragma once

#include <vector>

#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/graph_support.h"

namespace rowband::cuda {

// Calls captured into a graph; each replay's results lie in the slots of the captured calls.
class CapturedCalls {
 public:
  CapturedCalls(const ExactCalls& calls, const std::vector<std::int64_t>& rows)
      : graph_(calls.stream(), [&] {
          for (const std::int64_t m : rows) results_.push_back(calls.run(m));
        }) {}

  const Output& result(std::size_t call = 0) const { return results_.at(call); }
  void replay() const { graph_.replay(); }

 private:
  std::vector<Output> results_;
  const Graph graph_;
};

}  // namespace rowband::cuda
