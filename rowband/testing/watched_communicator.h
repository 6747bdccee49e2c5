// A communicator whose view of its peers' lives is the test's.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "rowband/comm/communicator.h"

namespace rowband {

class WatchedCommunicator final : public Communicator {
 public:
  // `comm` does everything but peer_alive(), which is `alive`; that may also do something.
  WatchedCommunicator(Communicator& comm, std::function<bool(int rank)> alive)
      : comm_(comm), alive_(std::move(alive)) {}

  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  std::string_view kind() const override { return comm_.kind(); }
  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) override {
    comm_.all_gather(send, recv, bytes, deadline);
  }
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) override {
    comm_.all_reduce(data, count, deadline);
  }
  std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                      Deadline deadline) override {
    return comm_.allocate_symmetric(bytes, deadline);
  }
  bool peer_alive(int rank) const override { return alive_(rank); }

 private:
  Communicator& comm_;
  const std::function<bool(int rank)> alive_;
};

}  // namespace rowband
