// `rowband doctor`: one report to paste into a bug report.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "rowband/cli/commands.h"
#include "rowband/cli/doctor.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/engines/engine.h"

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

ordered_json describe_everything(bool measured) {
  return {{"build", describe_build()},
          {"machine", describe_machine()},
          {"engine", describe_engine()},
          {"gpus", describe_gpus(measured)},
          {"limits", describe_limits()},
          {"libraries", describe_libraries()},
          {"environment", describe_environment()}};
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
  auto engine = std::make_shared<std::optional<EngineKind>>();
  CLI::App& command = *program.add_subcommand(
      "doctor", "Describe machine, build, limits and settings, to be pasted into a bug report");
  command.add_flag("--json", *json, "Print JSON");
  command
      .add_option_function<std::string>(
          "--engine", [engine](const std::string& text) { *engine = parse_engine(text); },
          "host leaves out how fast bytes move between the GPUs")
      ->type_name("host|cuda");
  command.callback([json, engine, &chosen] {
    chosen = [json, engine] {
      const ordered_json report = describe_everything(*engine != EngineKind::kHost);
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
