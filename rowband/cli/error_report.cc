#include "rowband/cli/error_report.h"

#include <fmt/format.h>

#include <cstdio>
#include <new>

#include "rowband/base/error.h"
#include "rowband/cli/exit_codes.h"

namespace rowband::cli {

ErrorReport report_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& failure) {
    return {fmt::format("({}): {}", error_code_name(failure.code()), failure.what()),
            exit_code_of(failure.code())};
  } catch (const std::bad_alloc&) {
    return {fmt::format("({}): this process could not get the memory that these shapes need",
                        error_code_name(ErrorCode::kOutOfMemory)),
            kFailed};
  } catch (const std::exception& failure) {
    return {fmt::format("({}): {}", error_code_name(ErrorCode::kInternal), failure.what()),
            kFailed};
  }
}

void print_error(const ErrorReport& report, const std::string& witness) {
  fmt::print(stderr, "rowband: error {}{}\n", report.text,
             witness.empty() ? "" : fmt::format(" [seen by {}]", witness));
  std::fflush(stderr);
}

}  // namespace rowband::cli
