// `rowband make-checkpoint` and `rowband quantize`.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "rowband/cli/commands.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/options.h"
#include "rowband/io/checkpoint.h"
#include "rowband/io/make_checkpoint.h"

namespace rowband::cli {
namespace {

struct MakeFlags {
  RandomLinear linear;
  std::string output;
};

int make(const MakeFlags& flags) {
  make_checkpoint(flags.output, flags.linear);
  fmt::print("{}: {}.weight F8_E4M3 [{}, {}], {} scales{}, {}\n", flags.output, flags.linear.name,
             flags.linear.cols, flags.linear.depth, scale_format_name(flags.linear.scale_format),
             flags.linear.bias ? ", bias" : "",
             bytes_text(static_cast<std::int64_t>(std::filesystem::file_size(flags.output))));
  return kOk;
}

struct QuantizeFlags {
  std::string checkpoint;
  std::string output;
  std::vector<std::string> tensors;
  ScaleFormat scale_format = ScaleFormat::kFp32;
};

int quantize(const QuantizeFlags& flags) {
  const Checkpoint source = Checkpoint::open(flags.checkpoint);
  quantize_checkpoint(source, flags.tensors, flags.scale_format, flags.output);
  for (const std::string& note : source.notes()) fmt::print("{}: {}\n", flags.checkpoint, note);
  const Checkpoint written = Checkpoint::open(flags.output);
  for (const std::string& name : written.names()) {
    const TensorInfo tensor = written.tensor(name);
    if (tensor.dtype != DType::kF8E4m3) continue;
    fmt::print("{}: {} F8_E4M3 {}, {} scales\n", flags.output, name, shape_text(tensor.shape),
               scale_format_name(flags.scale_format));
  }
  return kOk;
}

}  // namespace

void add_make_checkpoint_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<MakeFlags>();
  RandomLinear& linear = flags->linear;
  CLI::App& command = *program.add_subcommand(
      "make-checkpoint", "Write a seeded random block-scale fp8 checkpoint in DeepSeek's format");
  command.add_option("--output", flags->output, "File to write, .safetensors")
      ->required()
      ->type_name("FILE");
  command.add_option("--tensor", linear.name, "Name of the linear")
      ->capture_default_str()
      ->type_name("NAME");
  command.add_option("--cols", linear.cols, "Output columns")->required()->type_name("N");
  command.add_option("--depth", linear.depth, "Inner dimension of all ranks together")
      ->required()
      ->type_name("K");
  command.add_option("--seed", linear.seed, "The same seed gives the same bytes")
      ->capture_default_str()
      ->type_name("NUMBER");
  add_scale_format_option(command, "--scale-format", linear.scale_format, "Of the weight's scales");
  command.add_flag("--bias", linear.bias, "Write a bias too");
  command.callback([flags, &chosen] { chosen = [flags] { return make(*flags); }; });
}

void add_quantize_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<QuantizeFlags>();
  CLI::App& command = *program.add_subcommand(
      "quantize", "Quantise a checkpoint's bf16 or f32 matrices to block-scale fp8");
  command.add_option("--checkpoint", flags->checkpoint, "File, index or directory to read")
      ->required()
      ->type_name("PATH");
  command.add_option("--output", flags->output, "File to write, .safetensors")
      ->required()
      ->type_name("FILE");
  command
      .add_option(
          "--tensor", flags->tensors,
          "A matrix to quantise; may be given several times. Without it: every 2-D *.weight")
      ->type_name("NAME");
  add_scale_format_option(command, "--scale-format", flags->scale_format, "Of the scales");
  command.callback([flags, &chosen] { chosen = [flags] { return quantize(*flags); }; });
}

}  // namespace rowband::cli
