// One rank's NCCL communicator: collectives on device memory, queued on the caller's streams. One
// rank per GPU; the ranks are processes or threads.
//
// Every wait is bounded: making one by its deadline; a queued collective by `budget`, or by a
// peer's end. Past that the communicator is aborted, which also ends the kernels that still wait on
// a stream, and it is failed for good: failure() says why, and every call throws Error with that
// reason. What such a kernel leaves in memory is no result.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "rowband/base/deadline.h"
#include "rowband/numerics/types.h"

struct CUstream_st;

namespace rowband {
class Communicator;
}

namespace rowband::comm {

// "" or why this build or this machine has no NCCL. Loads the library.
std::string why_no_nccl();
// "2.28.9", or "" where why_no_nccl() says why.
std::string nccl_version();

// What ranks find each other by, an ncclUniqueId: made by one rank and told to all.
struct NcclId {
  std::array<char, 128> bytes = {};
};
// Throws Error(kUnavailable) with the reason of why_no_nccl().
NcclId make_nccl_id();

// Collective over `comm`: an id that rank 0 made, the same on every rank, or the same error on
// every rank: Error(kUnavailable) where a rank has no NCCL, or two ranks are on one GPU, which NCCL
// does not join. `device` is this rank's.
NcclId agree_on_nccl_id(Communicator& comm, int device, Deadline deadline);

struct NcclRank {
  int rank = 0;
  int size = 1;
  int device = 0;  // this rank's GPU, by its CUDA number here
  // False once a rank is known to be gone. Asked during waits, and from another thread; without it
  // only the deadlines bound a wait.
  std::function<bool(int rank)> peer_alive;
};

class NcclComm {
 public:
  // The streams must have passed the last call. Local. What a graph that captured a call still
  // needs is freed when that graph ends.
  virtual ~NcclComm() = default;

  virtual const NcclRank& rank() const = 0;

  // In place, `count` bf16 of device memory, in NCCL's order of adds. Queued on `stream`, one call
  // at a time; by the deadline the stream has passed it. May be captured into a graph; a replay is
  // bounded by the peers' lives alone.
  virtual void all_reduce(Bf16* data, std::int64_t count, Deadline deadline,
                          CUstream_st* stream) = 0;

  // Device memory; rank r's bytes land at r * bytes. Otherwise as all_reduce.
  virtual void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline,
                          CUstream_st* stream) = 0;

  // Until `stream` has passed what was queued. Throws what failure() says or, past the deadline,
  // Error(kDeadline) with `what`.
  virtual void wait(CUstream_st* stream, std::string_view what, Deadline deadline) = 0;

  // "" while healthy. To be asked after a stream has passed a call and before its result is used.
  virtual std::string failure() const = 0;
};

// Collective over the ranks that were told `id`. Throws Error(kUnavailable) with NCCL's words,
// Error(kPeerLost) or Error(kDeadline); the peers of a rank that threw fail too, at the latest at
// their deadline.
std::unique_ptr<NcclComm> make_nccl_comm(const NcclId& id, NcclRank rank, Deadline deadline);

// Collective over `comm`, which must outlive it: all ranks get one, or all the same error with each
// failing rank's reason, as agree_on_nccl_id.
std::unique_ptr<NcclComm> make_nccl_comm(Communicator& comm, int device, Deadline deadline);

}  // namespace rowband::comm
