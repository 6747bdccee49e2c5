#include "rowband/engines/cuda/cublas_library.h"

#include <dlfcn.h>

#include "rowband/base/fail.h"

namespace rowband::cuda {
namespace {

constexpr std::size_t kFirstWithBlockScales = 120900;

// Where the loader looks, else beside the header that this was built with.
void* open_library() {
  const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* error = dlerror();
  const std::string why = error != nullptr ? error : name;
  if (void* library = dlopen(ROWBAND_CUBLASLT_AT_BUILD, RTLD_NOW | RTLD_LOCAL)) return library;
  fail(ErrorCode::kUnavailable, "cuBLASLt is not here: {}; name its folder in LD_LIBRARY_PATH",
       why);
}

CublasLibrary load() {
  void* library = open_library();  // stays for the life of the process
  const auto find = [&](const char* name) {
    void* function = dlsym(library, name);
    if (function == nullptr) fail(ErrorCode::kUnavailable, "cuBLASLt has no {}", name);
    return function;
  };
  CublasLibrary loaded;
#define ROWBAND_LOAD(name) loaded.name = reinterpret_cast<decltype(&::name)>(find(#name));
  ROWBAND_CUBLAS_FUNCTIONS(ROWBAND_LOAD)
#undef ROWBAND_LOAD
  if (const std::size_t version = loaded.cublasLtGetVersion(); version < kFirstWithBlockScales) {
    fail(ErrorCode::kUnavailable, "cuBLASLt is {}.{}: it multiplies with block scales from 12.9 on",
         version / 10000, version / 100 % 100);
  }
  return loaded;
}

}  // namespace

const CublasLibrary& cublas() {
  static const CublasLibrary loaded = load();  // tried again when it threw
  return loaded;
}

void check_cublas(cublasStatus_t result, const std::string& what) {
  if (result == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorCode::kUnavailable, "{}: cuBLASLt: {}", what, cublas().cublasLtGetStatusString(result));
}

}  // namespace rowband::cuda
