// What the library reads and writes, as plain files that a Python test can compare. Errors go to
// stderr with exit status 1.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "rowband/base/fail.h"
#include "rowband/io/checkpoint.h"
#include "rowband/io/make_checkpoint.h"
#include "rowband/io/matrix_file.h"

namespace {

using rowband::ScaleFormat;
namespace fs = std::filesystem;

struct Arguments {
  fs::path in;
  fs::path out;
  std::string name;
  int rank = 0;
  int world = 1;
  ScaleFormat format = ScaleFormat::kFp32;
  rowband::RandomLinear linear;
};

template <typename T>
void write_raw(const fs::path& path, const std::vector<T>& values) {
  std::ofstream out(path, std::ios::binary);
  const auto bytes = std::as_bytes(std::span(values));
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  if (!out.flush()) rowband::fail(rowband::ErrorCode::kIo, "{}: cannot write", path.string());
}

// Codes, scales and bias as raw files in directory `out`; sizes as "key value" lines on stdout.
void dump_slice(const Arguments& arguments) {
  const auto checkpoint = rowband::Checkpoint::open(arguments.in);
  const auto weight =
      rowband::read_weight_slice(checkpoint, arguments.name, arguments.rank, arguments.world);
  write_raw(arguments.out / "codes", weight.codes);
  write_raw(arguments.out / "scales", weight.scales);
  write_raw(arguments.out / "bias", rowband::read_bias(checkpoint, arguments.name, weight.cols));
  std::printf("cols %lld\ndepth %lld\ndepth_begin %lld\ntotal_depth %lld\nscale_format %s\n",
              static_cast<long long>(weight.cols), static_cast<long long>(weight.depth),
              static_cast<long long>(weight.depth_begin),
              static_cast<long long>(weight.total_depth),
              weight.scale_format == ScaleFormat::kUe8m0 ? "ue8m0" : "fp32");
  for (const std::string& note : checkpoint.notes()) std::printf("note %s\n", note.c_str());
}

void copy_matrix(const Arguments& arguments) {
  rowband::write_matrix(arguments.out, rowband::read_matrix(arguments.in, arguments.name), "y");
}

void quantize(const Arguments& arguments) {
  rowband::quantize_checkpoint(rowband::Checkpoint::open(arguments.in), {}, arguments.format,
                               arguments.out);
}

void make(Arguments arguments) {
  arguments.linear.scale_format = arguments.format;
  rowband::make_checkpoint(arguments.out, arguments.linear);
}

void add_format(CLI::App& command, Arguments& arguments) {
  command.add_option("--scales", arguments.format, "fp32 or ue8m0")
      ->transform(CLI::Transformer(std::map<std::string, ScaleFormat>{
          {"fp32", ScaleFormat::kFp32}, {"ue8m0", ScaleFormat::kUe8m0}}));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Reads and writes weights and matrices for the Python tests"};
  app.require_subcommand(1);
  Arguments arguments;

  CLI::App* slice = app.add_subcommand("slice", "One rank's slice of a weight as raw files");
  slice->add_option("checkpoint", arguments.in)->required();
  slice->add_option("name", arguments.name)->required();
  slice->add_option("out", arguments.out, "an existing directory")->required();
  slice->add_option("--rank", arguments.rank);
  slice->add_option("--world", arguments.world);
  slice->callback([&] { dump_slice(arguments); });

  CLI::App* matrix = app.add_subcommand("matrix", "Reads a matrix and writes it again");
  matrix->add_option("in", arguments.in)->required();
  matrix->add_option("out", arguments.out)->required();
  matrix->add_option("--tensor", arguments.name);
  matrix->callback([&] { copy_matrix(arguments); });

  CLI::App* quantizer = app.add_subcommand("quantize", "Quantises every matrix of a checkpoint");
  quantizer->add_option("in", arguments.in)->required();
  quantizer->add_option("out", arguments.out)->required();
  add_format(*quantizer, arguments);
  quantizer->callback([&] { quantize(arguments); });

  CLI::App* maker = app.add_subcommand("make", "Makes a random checkpoint of one linear");
  maker->add_option("out", arguments.out)->required();
  maker->add_option("cols", arguments.linear.cols)->required();
  maker->add_option("depth", arguments.linear.depth)->required();
  maker->add_flag("--bias", arguments.linear.bias);
  add_format(*maker, arguments);
  maker->callback([&] { make(arguments); });

  try {
    CLI11_PARSE(app, argc, argv);
  } catch (const rowband::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
