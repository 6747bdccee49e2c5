// What the program's exit status says.
#pragma once

#include "rowband/base/error.h"

namespace rowband::cli {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,    // it ran and something is wrong: verification, a lost peer, a deadline
  kBadInput = 2,  // the command line, a file or a setting has to change
};

inline ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kFormat:
    case ErrorCode::kIo:
      return kBadInput;
    default:
      return kFailed;
  }
}

}  // namespace rowband::cli
