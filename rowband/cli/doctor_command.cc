// `rowband doctor`: one report to paste into a bug report.
#include <fmt/format.h>

#include <memory>

#include "rowband/cli/commands.h"
#include "rowband/cli/doctor.h"
#include "rowband/cli/exit_codes.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

ordered_json describe_everything() {
  return {{"build", describe_build()},         {"machine", describe_machine()},
          {"engine", describe_engine()},       {"limits", describe_limits()},
          {"libraries", describe_libraries()}, {"environment", describe_environment()}};
}

void print_sections(const ordered_json& report) {
  std::size_t width = 0;
  for (const auto& section : report) {
    for (const auto& [key, value] : section.items()) width = std::max(width, key.size());
  }
  for (const auto& [name, section] : report.items()) {
    fmt::print("{}{}\n", name == report.begin().key() ? "" : "\n", name);
    for (const auto& [key, value] : section.items()) {
      fmt::print("  {:<{}}  {}\n", key, width, value.get<std::string>());
    }
  }
}

}  // namespace

void add_doctor_command(CLI::App& program, Command& chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App& command = *program.add_subcommand(
      "doctor", "Describe machine, build, limits and settings, to be pasted into a bug report");
  command.add_flag("--json", *json, "Print JSON");
  command.callback([json, &chosen] {
    chosen = [json] {
      const ordered_json report = describe_everything();
      if (*json) {
        fmt::print("{}\n", report.dump(2));
      } else {
        print_sections(report);
      }
      return static_cast<int>(kOk);
    };
  });
}

}  // namespace rowband::cli
