#include "rowband/comm/tcp.h"

#include "rowband/base/fail.h"
#include "rowband/comm/callbacks.h"
#include "rowband/comm/tcp_star.h"

namespace rowband {

TcpRendezvous torchrun_rendezvous(int rank, int world_size, const std::string& master_addr,
                                  int master_port) {
  return {master_addr, master_port + 1, rank, world_size};
}

std::unique_ptr<Communicator> make_tcp_communicator(const TcpRendezvous& rendezvous,
                                                    Deadline deadline) {
  if (rendezvous.size < 1 || rendezvous.rank < 0 || rendezvous.rank >= rendezvous.size) {
    fail(ErrorCode::kInvalidArgument, "rank {} of {} ranks; the rank must be in [0, size)",
         rendezvous.rank, rendezvous.size);
  }
  if (rendezvous.port < 1 || rendezvous.port > 65535) {
    fail(ErrorCode::kInvalidArgument, "port {} of rank 0: must be from 1 to 65535",
         rendezvous.port);
  }
  const auto star = std::make_shared<comm::TcpStar>(rendezvous, deadline);
  CommunicatorCallbacks callbacks;
  callbacks.rank = rendezvous.rank;
  callbacks.size = rendezvous.size;
  callbacks.kind = "tcp";
  callbacks.all_gather = [star](const void* send, void* recv, std::size_t bytes, Deadline until) {
    star->all_gather(send, recv, bytes, until);
  };
  return make_callback_communicator(std::move(callbacks));
}

}  // namespace rowband
