// The subcommands. Each adds itself to the program; the one that the user chose leaves what is to
// be done in `chosen`, which returns the exit status.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace rowband::cli {

using Command = std::function<int()>;

void add_run_command(CLI::App& program, Command& chosen);
void add_bench_command(CLI::App& program, Command& chosen);
void add_demo_command(CLI::App& program, Command& chosen);
void add_plan_command(CLI::App& program, Command& chosen);
void add_self_test_command(CLI::App& program, Command& chosen);
void add_make_checkpoint_command(CLI::App& program, Command& chosen);
void add_quantize_command(CLI::App& program, Command& chosen);
void add_doctor_command(CLI::App& program, Command& chosen);

}  // namespace rowband::cli
