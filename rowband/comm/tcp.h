// Ranks that find each other by TCP: processes that were told a host, a port and their rank, as
// torchrun tells its.
#pragma once

#include <memory>
#include <string>

#include "rowband/comm/communicator.h"

namespace rowband {

struct TcpRendezvous {
  std::string host;  // where rank 0 listens: a name or an address of its machine
  int port = 0;      // 1 to 65535
  int rank = 0;
  int size = 1;
  // Rank 0 alone: a descriptor that listens at host and port already, and is taken over; -1 makes
  // one.
  int listener = -1;
};

// From what torchrun tells its processes in RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The
// store of torchrun itself listens at MASTER_PORT, so the ranks meet at the port after it.
TcpRendezvous torchrun_rendezvous(int rank, int world_size, const std::string& master_addr,
                                  int master_port);

// Collective: rank 0 listens and the others come, in any order. Its all_gather goes through rank 0;
// all_reduce and allocate_symmetric are those of callbacks.h, over shared memory of one machine. A
// stranger at the port, or a rank of another job, is sent away and does no harm.
//
// Throws Error(kInvalidArgument) for values out of range; Error(kUnavailable) when the host's name
// is unknown or rank 0 cannot listen there; Error(kDeadline) naming host, port and the ranks that
// did not come (on rank 0) or the last attempt's error (on the others); Error(kPeerLost) when a
// rank's connection ends.
std::unique_ptr<Communicator> make_tcp_communicator(
    const TcpRendezvous& rendezvous, Deadline deadline = Deadline::after(kDefaultDeadline));

}  // namespace rowband
