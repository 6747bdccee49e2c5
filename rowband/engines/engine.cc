#include "rowband/engines/engine.h"

#include "rowband/base/fail.h"
#include "rowband/engines/host/engine.h"

namespace rowband {

std::string_view engine_name(EngineKind kind) {
  switch (kind) {
    case EngineKind::kHost:
      return "host";
  }
  return "unknown";
}

EngineKind parse_engine(std::string_view text) {
  if (text == "host") return EngineKind::kHost;
  fail(ErrorCode::kInvalidArgument, "engine '{}' is not one of 'host'", text);
}

std::unique_ptr<Engine> make_engine(EngineKind kind, int rank, const EngineOptions& options) {
  switch (kind) {
    case EngineKind::kHost:
      return host::make_host_engine(rank, options);
  }
  fail(ErrorCode::kInternal, "engine kind {} has no maker", static_cast<int>(kind));
}

}  // namespace rowband
