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

// "rowband: error (bad format): weights.safetensors: ..." on stderr; `witness` is "" or who met it.
void print_error(const ErrorReport& report, const std::string& witness);

}  // namespace rowband::cli
