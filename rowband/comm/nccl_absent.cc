// nccl.h and nccl_comm.h in a build without NCCL's headers.
#include "rowband/base/fail.h"
#include "rowband/comm/nccl.h"

namespace rowband {

std::unique_ptr<Communicator> make_nccl_communicator(const comm::NcclId&, int, int, int, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", comm::why_no_nccl());
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, int, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", comm::why_no_nccl());
}

std::unique_ptr<Communicator> make_nccl_communicator(const TcpRendezvous&, int, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", comm::why_no_nccl());
}

}  // namespace rowband

namespace rowband::comm {

std::string why_no_nccl() {
  return "this build has no NCCL: it was configured without CUDA, or without the headers of NCCL "
         "2.28 "
         "or newer";
}

std::string nccl_version() { return ""; }

NcclId make_nccl_id() { fail(ErrorCode::kUnavailable, "{}", why_no_nccl()); }

NcclId agree_on_nccl_id(Communicator&, int, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", why_no_nccl());
}

std::unique_ptr<NcclComm> make_nccl_comm(const NcclId&, NcclRank, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", why_no_nccl());
}

std::unique_ptr<NcclComm> make_nccl_comm(Communicator&, int, Deadline) {
  fail(ErrorCode::kUnavailable, "{}", why_no_nccl());
}

}  // namespace rowband::comm
