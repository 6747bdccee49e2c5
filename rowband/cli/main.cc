// The program `rowband`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "rowband/cli/build_info.h"
#include "rowband/cli/commands.h"
#include "rowband/cli/devices.h"
#include "rowband/cli/error_report.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/logging.h"
#include "rowband/cli/ranks.h"

namespace rowband::cli {
namespace {

constexpr const char* kFooter =
    R"(Ranks are threads of this process or, on GPUs, processes that it starts; or the processes of
`mpirun -n W rowband ...` or `torchrun --no-python --nproc-per-node W rowband ...`.
Settings that no option gives come from ROWBAND_* variables; `rowband doctor` lists them.
Exit status: 0 fine, 1 it failed (verification too), 2 the command line or a file has to change.)";

// Under a launcher one process speaks for all.
int exit_of_parser(const CLI::App& program, const CLI::ParseError& error) {
  const bool asked_for_text = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
  if (is_first_process()) {
    if (asked_for_text) {
      program.exit(error);  // prints help or version on stdout
    } else {
      print_error({fmt::format("(usage): {}; see --help", error.what()), kBadInput}, "");
    }
  }
  return asked_for_text ? kOk : kBadInput;
}

int run_program(int argc, char** argv) {
  CLI::App program("A tensor-parallel linear layer whose all-reduce runs inside its fp8 GEMM",
                   "rowband");
  program.set_version_flag("--version", std::string("rowband ") + kVersion);
  program.require_subcommand(1);
  program.footer(kFooter);
  std::string log_level;
  program.add_option("--log-level", log_level, "trace|debug|info|warning|error|critical|off")
      ->type_name("LEVEL");
  Command chosen;
  add_run_command(program, chosen);
  add_bench_command(program, chosen);
  add_demo_command(program, chosen);
  add_plan_command(program, chosen);
  add_self_test_command(program, chosen);
  add_make_checkpoint_command(program, chosen);
  add_quantize_command(program, chosen);
  add_doctor_command(program, chosen);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_of_parser(program, error);
  }
  start_logging(log_level);
  return chosen();
}

}  // namespace
}  // namespace rowband::cli

int main(int argc, char** argv) {
  using namespace rowband::cli;
  ask_for_gpu_queues();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // whoever reads a pipe sees each line at once
  try {
    return run_program(argc, argv);
  } catch (const ErrorShown& shown) {
    return shown.exit_code();
  } catch (...) {
    const ErrorReport report = report_of(std::current_exception());
    if (is_first_process()) print_error(report, "");
    return report.exit_code;
  }
}
