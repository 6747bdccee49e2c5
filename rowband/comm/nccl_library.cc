#include "rowband/comm/nccl_library.h"

#include <dlfcn.h>

#include "rowband/base/fail.h"

namespace rowband::comm {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr int kOldest = NCCL_VERSION(2, 28, 0);  // the first with windows that kernels can address

// Where the loader looks, else beside the headers that this was built with.
void* open_library() {
  if (void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = dlerror();
  const std::string why = error != nullptr ? error : kLibrary;
  if (void* library = dlopen(ROWBAND_NCCL_AT_BUILD, RTLD_NOW | RTLD_LOCAL)) return library;
  fail(ErrorCode::kUnavailable,
       "NCCL is not here: {}; install {} (2.28 or newer) or name its folder in LD_LIBRARY_PATH",
       why, kLibrary);
}

void* find(void* library, const char* name) {
  void* function = dlsym(library, name);
  if (function == nullptr) {
    fail(ErrorCode::kUnavailable, "{} has no {}; NCCL 2.28 or newer is needed", kLibrary, name);
  }
  return function;
}

NcclLibrary load() {
  NcclLibrary loaded;
  void* library = open_library();  // stays for the life of the process: NCCL has threads in it
  loaded.ncclGetVersion =
      reinterpret_cast<decltype(&::ncclGetVersion)>(find(library, "ncclGetVersion"));
  if (loaded.ncclGetVersion(&loaded.version) != ncclSuccess || loaded.version < kOldest) {
    fail(ErrorCode::kUnavailable, "{} is NCCL {}; 2.28 or newer is needed", kLibrary,
         nccl_version_text(loaded.version));
  }
#define ROWBAND_LOAD(name) loaded.name = reinterpret_cast<decltype(&::name)>(find(library, #name));
  ROWBAND_NCCL_FUNCTIONS(ROWBAND_LOAD)
#undef ROWBAND_LOAD
  loaded.ncclTeamLsa = reinterpret_cast<ncclTeam_t (*)(ncclComm_t)>(find(library, "ncclTeamLsa"));
  return loaded;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary loaded = load();  // tried again when it threw
  return loaded;
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void nccl_check(ncclResult_t result, const std::string& what) {
  if (result == ncclSuccess) return;
  const char* detail = nccl().ncclGetLastError(nullptr);
  fail(result == ncclRemoteError ? ErrorCode::kPeerLost : ErrorCode::kUnavailable,
       "{}: NCCL: {}{}{}", what, nccl().ncclGetErrorString(result),
       detail != nullptr && *detail != '\0' ? ": " : "", detail != nullptr ? detail : "");
}

}  // namespace rowband::comm
