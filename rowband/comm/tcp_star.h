// TCP connections between rank 0, the hub, and every other rank; every wait has a deadline. Used by
// one thread at a time.
#pragma once

#include <cstddef>
#include <memory>

#include "rowband/base/deadline.h"
#include "rowband/comm/tcp.h"

namespace rowband::comm {

class TcpStar {
 public:
  // As make_tcp_communicator.
  TcpStar(const TcpRendezvous& rendezvous, Deadline deadline);
  ~TcpStar();

  // Collective: recv holds size * bytes; rank r's bytes land at r * bytes. An error of one rank is
  // told to the others by the hub, as far as they can be reached. After an error the star must not
  // be used again.
  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline);

 private:
  class Connections;
  const std::unique_ptr<Connections> connections_;
};

}  // namespace rowband::comm
