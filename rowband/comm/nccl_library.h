// NCCL's functions, out of libnccl.so.2, which is loaded when it is first asked for: a program
// built with NCCL starts where there is none, and one that runs beside another user of NCCL in its
// process shares that library. Only for files that are compiled when the build has NCCL's headers
// (ROWBAND_HAVE_NCCL).
#pragma once

#include <nccl.h>
#include <nccl_device/core.h>

#include <string>

namespace rowband::comm {

#define ROWBAND_NCCL_FUNCTIONS(DO) \
  DO(ncclGetVersion)               \
  DO(ncclGetErrorString)           \
  DO(ncclGetLastError)             \
  DO(ncclGetUniqueId)              \
  DO(ncclCommInitRankConfig)       \
  DO(ncclCommSplit)                \
  DO(ncclCommDestroy)              \
  DO(ncclCommAbort)                \
  DO(ncclCommGetAsyncError)        \
  DO(ncclAllGather)                \
  DO(ncclAllReduce)                \
  DO(ncclMemAlloc)                 \
  DO(ncclMemFree)                  \
  DO(ncclCommWindowRegister)       \
  DO(ncclCommWindowDeregister)

struct NcclLibrary {
// A name that is declared takes no parentheses. NOLINTNEXTLINE(bugprone-macro-parentheses)
#define ROWBAND_DECLARE(name) decltype(&::name) name = nullptr;
  ROWBAND_NCCL_FUNCTIONS(ROWBAND_DECLARE)
#undef ROWBAND_DECLARE
  ncclTeam_t (*ncclTeamLsa)(ncclComm_t) = nullptr;  // the headers overload it
  int version = 0;                                  // as NCCL_VERSION makes it
};

// Throws Error(kUnavailable): no libnccl.so.2, or one older than 2.28 or of another major version.
const NcclLibrary& nccl();

// "2.28.9".
std::string nccl_version_text(int version);

// Throws Error(kUnavailable) with `what` and NCCL's own words unless `result` is success; a peer
// that went is Error(kPeerLost).
void nccl_check(ncclResult_t result, const std::string& what);

}  // namespace rowband::comm
