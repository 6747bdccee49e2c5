#include "rowband/engines/cuda/turns.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/error.h"
#include "rowband/engines/cuda/kernels.h"

namespace rowband::cuda {

void take_turns(Communicator& comm, int device, Deadline deadline,
                const std::function<void()>& step) {
  struct Seat {
    std::int64_t process;
    std::int64_t device;
    bool operator==(const Seat&) const = default;
  };
  const Seat own{getpid(), device};
  std::vector<Seat> seats(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&own, seats.data(), sizeof own, deadline);
  std::ptrdiff_t own_turn = 0, turns = 0;
  for (auto seat = seats.begin(); seat != seats.end(); ++seat) {
    const std::ptrdiff_t turn = std::count(seats.begin(), seat, *seat);
    if (seat - seats.begin() == comm.rank()) own_turn = turn;
    turns = std::max(turns, turn + 1);
  }
  for (std::ptrdiff_t turn = 0; turn < turns; ++turn) {
    if (turn == own_turn) step();
    if (turns > 1) comm.barrier(deadline);
  }
}

void choose_queue(Communicator& comm, int device, cudaStream_t stream, Deadline deadline) {
  std::string failure;
  take_turns(comm, device, deadline, [&] {
    try {
      const DeviceScope scope(device);
      launch_nothing(stream);
      check(cudaStreamSynchronize(stream), "waiting for it");
    } catch (const Error& error) {
      failure = error.what();
    }
  });
  agree_on_success(comm, "a stream's first launch", failure, ErrorCode::kUnavailable, deadline);
}

}  // namespace rowband::cuda
