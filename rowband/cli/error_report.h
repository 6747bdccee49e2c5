// How the program shows an error, and the exit status that goes with it.
#pragma once

#include <exception>
#include <string>

namespace rowband::cli {

struct ErrorReport {
  std::string text;  // "bad format: weights.safetensors: ..."
  int exit_code = 1;
};

ErrorReport report_of(const std::exception_ptr& error);

// "rowband: error (bad format): weights.safetensors: ..." on stderr; `where` is "" or "rank 3".
void print_error(const ErrorReport& report, const std::string& where);

}  // namespace rowband::cli
