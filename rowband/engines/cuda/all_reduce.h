// The base path's all-reduce of bf16 device memory.
#pragma once

#include <vector>

#include "rowband/engines/engine.h"

namespace rowband::cuda {

// Copies to the host, sums there by the communicator, copies back: right for every group, also for
// ranks that share a GPU, and slow. A call waits for its stream, so it can't be captured.
class AllReduceThroughHost final : public AllReduce {
 public:
  AllReduceThroughHost(Communicator& comm, Engine& engine);

  void run(Bf16* data, std::int64_t count, Deadline deadline, void* stream) override;
  std::string_view description() const override { return description_; }

 private:
  Communicator& comm_;
  Engine& engine_;
  const std::string description_;
  std::vector<Bf16> on_host_;
};

}  // namespace rowband::cuda
