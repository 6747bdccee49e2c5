// The one exception type of the library, and what each of its codes means.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace rowband {

enum class ErrorCode {
  kInvalidArgument,  // the caller passed a value that can never work; the message says what would
  kFormat,           // a file's content contradicts itself or its format
  kIo,               // the operating system refused a file operation
  kUnavailable,      // the machine or the build lacks something (a transport, a library, a limit)
  kOutOfMemory,      // an allocation failed; the message holds the bytes asked for
  kDisagreement,     // the ranks passed different values; the message holds both
  kDeadline,         // a bounded wait ended; the message names peer, leg and chunk
  kPeerLost,         // a peer's process or thread is gone
  kPoisoned,         // an earlier call failed; the message repeats why
  kCorrupted,        // bytes did not arrive as sent (self-test), or a check failed
  kInternal,         // a broken invariant of this library: please report it
};

// "invalid argument", "deadline", ... : the code in words.
std::string_view error_code_name(ErrorCode code);

// Thrown by every function of the library that can fail. what() names the thing, the value and what
// would be right.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace rowband
