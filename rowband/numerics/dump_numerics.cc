// Test tool: a filter that pushes raw little-endian numbers through one function of this room, so
// that numerics_ml_dtypes_test.py can compare every bit with an independent implementation.
//
//   dump_numerics float-to-bf16 < floats > bf16s
//   dump_numerics quantize-activations --rows 512 --depth 128 --ue8m0 < bf16s > codes, then scales
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <vector>

#include "rowband/base/fail.h"
#include "rowband/numerics/quantize.h"
#include "rowband/numerics/types.h"

namespace rowband {
namespace {

template <typename T>
std::vector<T> read_all() {
  std::vector<T> values;
  T value;
  while (std::fread(&value, sizeof(T), 1, stdin) == 1) values.push_back(value);
  if (std::ferror(stdin) != 0) fail(ErrorCode::kIo, "standard input could not be read");
  return values;
}

template <typename T>
void write_all(const std::vector<T>& values) {
  if (std::fwrite(values.data(), sizeof(T), values.size(), stdout) != values.size() ||
      std::fflush(stdout) != 0) {
    fail(ErrorCode::kIo, "standard output took less than {} values of {} bytes", values.size(),
         sizeof(T));
  }
}

template <typename To, typename From>
void convert_all(To (*convert)(From)) {
  std::vector<To> results;
  for (const From value : read_all<From>()) results.push_back(convert(value));
  write_all(results);
}

struct Shape {
  std::int64_t rows = 0;
  std::int64_t depth = 0;
  bool ue8m0 = false;
};

template <typename T>
std::vector<T> read_matrix(const Shape& shape) {
  std::vector<T> values = read_all<T>();
  if (std::ssize(values) != shape.rows * shape.depth) {
    fail(ErrorCode::kInvalidArgument, "standard input holds {} values, must hold {} x {}",
         values.size(), shape.rows, shape.depth);
  }
  return values;
}

void dump_activations(const Shape& shape) {
  const std::vector<Bf16> x = read_matrix<Bf16>(shape);
  std::vector<E4m3> codes(x.size());
  std::vector<float> scales(shape.rows * scale_blocks(shape.depth));
  quantize_activations(x.data(), shape.rows, shape.depth, shape.depth,
                       shape.ue8m0 ? ScaleFormat::kUe8m0 : ScaleFormat::kFp32, codes.data(),
                       shape.depth, scales.data());
  write_all(codes);
  write_all(scales);
}

void dump_weights(const Shape& shape) {
  const std::vector<float> w = read_matrix<float>(shape);
  std::vector<E4m3> codes(w.size());
  std::vector<float> scales(scale_blocks(shape.rows) * scale_blocks(shape.depth));
  quantize_weights(w.data(), shape.rows, shape.depth, shape.depth,
                   shape.ue8m0 ? ScaleFormat::kUe8m0 : ScaleFormat::kFp32, codes.data(),
                   scales.data());
  write_all(codes);
  write_all(scales);
}

void add_conversions(CLI::App& app) {
  app.add_subcommand("float-to-bf16")->callback([] { convert_all<Bf16, float>(to_bf16); });
  app.add_subcommand("float-to-e4m3")->callback([] { convert_all<E4m3, float>(to_e4m3); });
  app.add_subcommand("float-to-e8m0")->callback([] { convert_all<E8m0, float>(round_up_to_e8m0); });
  app.add_subcommand("bf16-to-float")->callback([] { convert_all<float, Bf16>(to_float); });
  app.add_subcommand("e4m3-to-float")->callback([] { convert_all<float, E4m3>(to_float); });
  app.add_subcommand("e8m0-to-float")->callback([] { convert_all<float, E8m0>(to_float); });
}

void add_quantizer(CLI::App& app, const char* name, Shape& shape, void (*dump)(const Shape&)) {
  CLI::App* command = app.add_subcommand(name);
  command->add_option("--rows", shape.rows)->required()->check(CLI::PositiveNumber);
  command->add_option("--depth", shape.depth)->required()->check(CLI::PositiveNumber);
  command->add_flag("--ue8m0", shape.ue8m0);
  command->callback([&shape, dump] { dump(shape); });
}

}  // namespace
}  // namespace rowband

int main(int argc, char** argv) {
  CLI::App app("Pushes raw numbers from standard input through one function of rowband/numerics");
  app.require_subcommand(1);
  rowband::Shape shape;
  rowband::add_conversions(app);
  rowband::add_quantizer(app, "quantize-activations", shape, rowband::dump_activations);
  rowband::add_quantizer(app, "quantize-weights", shape, rowband::dump_weights);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    fmt::print(stderr, "dump_numerics: {}\n", error.what());
    return 1;
  }
  return 0;
}
