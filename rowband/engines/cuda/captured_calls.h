// Test code: what is queued on a stream, captured into a graph.
#pragma once

#include <functional>
#include <vector>

#include "rowband/engines/cuda/random_calls.h"

namespace rowband::cuda {

// What `queue` queues on the stream, captured.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& queue) : stream_(stream) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    queue();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "ending a capture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "instantiating the graph");
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() const { check(cudaGraphLaunch(graph_, stream_), "launching the graph"); }

 private:
  const cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

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
