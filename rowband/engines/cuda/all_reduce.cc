#include "rowband/engines/cuda/all_reduce.h"

#include <fmt/format.h>

namespace rowband::cuda {

AllReduceThroughHost::AllReduceThroughHost(Communicator& comm, Engine& engine)
    : comm_(comm),
      engine_(engine),
      description_(
          fmt::format("all-reduce of the {} communicator, through the host", comm.kind())) {}

void AllReduceThroughHost::run(Bf16* data, std::int64_t count, Deadline deadline, void* stream) {
  const auto size = static_cast<std::size_t>(count);
  if (on_host_.size() < size) on_host_.resize(size);
  engine_.download(on_host_.data(), data, size * sizeof(Bf16), stream);
  comm_.all_reduce(on_host_.data(), count, deadline);
  engine_.copy(data, on_host_.data(), size * sizeof(Bf16), stream);
  engine_.synchronize(stream);
}

}  // namespace rowband::cuda
