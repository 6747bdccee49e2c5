// How the ranks of one group find each other: bootstrap and agreement, the base path's all-reduce,
// and memory that all of them can write. The fused legs themselves do not go through here.
//
// Every method is collective unless it says otherwise: all ranks call it, in the same order, from
// one thread per rank at a time. Every wait is bounded by the given deadline; past it the method
// throws Error(kDeadline) naming what it waited for and which ranks had not come, and the
// communicator must not be used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/base/deadline.h"
#include "rowband/base/error.h"
#include "rowband/numerics/types.h"

namespace rowband {

// Memory of the same size on every rank, zero-filled at allocation, each rank's part 4096-aligned
// and readable and writable by every rank. The mapping ends with this object; that is not
// collective.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;
  virtual std::byte* part(int rank) const = 0;  // address, here, of `rank`'s part
  virtual std::size_t bytes() const = 0;        // of one part
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view kind() const = 0;  // "threads", "mpi", "nccl", "tcp", "callbacks"

  // recv holds size() * bytes; rank r's bytes land at r * bytes.
  virtual void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) = 0;

  // Sums `count` bf16 values of every rank in place, fp32 adds. Throws Error(kDisagreement) naming
  // both numbers when the ranks pass different counts.
  virtual void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) = 0;

  // Throws Error(kOutOfMemory) or Error(kUnavailable) with the reason; then on every rank.
  virtual std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                              Deadline deadline) = 0;

  // Not collective. False once `rank` is known to be gone (its process ended, or its thread let go
  // of its communicator). True means only that nothing is known.
  virtual bool peer_alive(int rank) const = 0;

  void barrier(Deadline deadline);
};

// --- agreement, on top of all_gather -------------------------------------------------------------

// Every rank passes "" (fine) or why it failed. If any failed, throws on every rank alike the error
// `code` with `what` and each failing rank's reason.
void agree_on_success(Communicator& comm, std::string_view what, std::string_view failure,
                      ErrorCode code, Deadline deadline);

// Every rank passes the same named values, in the same order; throws Error(kDisagreement) on every
// rank with the name and both values of the first that differs.
struct NamedValue {
  std::string name;
  std::string value;
};
void agree_on_values(Communicator& comm, std::string_view what,
                     const std::vector<NamedValue>& values, Deadline deadline);

}  // namespace rowband
