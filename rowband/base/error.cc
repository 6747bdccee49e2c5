#include "rowband/base/error.h"

namespace rowband {

std::string_view error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid argument";
    case ErrorCode::kFormat:
      return "bad format";
    case ErrorCode::kIo:
      return "input/output error";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kOutOfMemory:
      return "out of memory";
    case ErrorCode::kDisagreement:
      return "disagreement between ranks";
    case ErrorCode::kDeadline:
      return "deadline passed";
    case ErrorCode::kPeerLost:
      return "peer lost";
    case ErrorCode::kPoisoned:
      return "poisoned by an earlier failure";
    case ErrorCode::kCorrupted:
      return "corrupted data";
    case ErrorCode::kInternal:
      return "internal error";
  }
  return "unknown error";
}

}  // namespace rowband
