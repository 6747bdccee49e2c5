#include "rowband/engines/engine.h"

#include "rowband/base/fail.h"
#include "rowband/engines/host/engine.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/engines/cuda/engine.h"
#include "rowband/engines/cuda/planner.h"
#endif

namespace rowband {

std::string_view engine_name(EngineKind kind) {
  switch (kind) {
    case EngineKind::kHost:
      return "host";
    case EngineKind::kCuda:
      return "cuda";
  }
  return "unknown";
}

EngineKind parse_engine(std::string_view text) {
  for (const EngineKind kind : {EngineKind::kHost, EngineKind::kCuda}) {
    if (text == engine_name(kind)) return kind;
  }
  fail(ErrorCode::kInvalidArgument, "engine '{}' is not one of 'host', 'cuda'", text);
}

#ifdef ROWBAND_HAVE_CUDA

EngineKind default_engine() {
  static const bool hopper = cuda::sees_hopper();
  return hopper ? EngineKind::kCuda : EngineKind::kHost;
}

#else

namespace cuda {
namespace {

[[noreturn]] void not_in_this_build() {
  fail(ErrorCode::kUnavailable,
       "this build has no cuda engine: configure with -DROWBAND_CUDA=ON, which needs nvcc");
}
std::unique_ptr<Engine> make_cuda_engine(const EngineOptions&) { not_in_this_build(); }
std::unique_ptr<EnginePlanner> make_cuda_planner(const PlannerOptions&) { not_in_this_build(); }

}  // namespace
}  // namespace cuda

EngineKind default_engine() { return EngineKind::kHost; }

#endif

std::unique_ptr<Engine> make_engine(EngineKind kind, int rank, const EngineOptions& options) {
  switch (kind) {
    case EngineKind::kHost:
      return host::make_host_engine(rank, options);
    case EngineKind::kCuda:
      return cuda::make_cuda_engine(options);
  }
  fail(ErrorCode::kInternal, "engine kind {} has no maker", static_cast<int>(kind));
}

std::unique_ptr<EnginePlanner> make_planner(EngineKind kind, const PlannerOptions& options) {
  switch (kind) {
    case EngineKind::kHost:
      return host::make_host_planner();
    case EngineKind::kCuda:
      return cuda::make_cuda_planner(options);
  }
  fail(ErrorCode::kInternal, "engine kind {} has no planner", static_cast<int>(kind));
}

}  // namespace rowband
