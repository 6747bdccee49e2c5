#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rowband/cli/arms.h"
#include "rowband/cli/bench_kernels.h"
#include "rowband/cli/kernel_timing.h"
#include "rowband/cli/random_operands.h"
#include "rowband/cli/table.h"
#include "rowband/engines/host/machine.h"
#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

struct QuantizerTimes {
  std::int64_t bytes;  // read and written by one call: bf16 in, codes and scales out
  double quantize_ms, copy_ms;
  bool right;
};

// The engine's bits are those of the scalar formula.
bool is_right(const QuantizedActivations& got, const Bf16* x) {
  std::vector<E4m3> codes(got.codes.size());
  std::vector<float> scales(got.scales.size());
  quantize_activations(x, got.rows, got.depth, got.depth, ScaleFormat::kFp32, codes.data(),
                       got.depth, scales.data());
  return codes == got.codes && scales == got.scales;
}

QuantizerTimes time_shape(Engine& engine, const KernelFlags& flags, int threads, std::int64_t rows,
                          std::int64_t depth) {
  const auto x = random_activations(flags.seed, 0, rows, 0, depth);
  QuantizedActivations out(engine, x.data(), rows, depth, depth);
  const std::int64_t bytes =
      rows * (depth * 3 + depth / kScaleBlock * static_cast<std::int64_t>(sizeof(float)));
  // A copy reads half of its traffic and writes the other half.
  std::vector<char> from(static_cast<std::size_t>(bytes / 2), 1), to(from.size());
  constexpr std::int64_t kPiece = 1 << 18;
  const std::int64_t pieces = (std::ssize(from) + kPiece - 1) / kPiece;
  const auto medians = time_in_turn(
      {[&] {
         engine.quantize(x.data(), rows, depth, depth, ScaleFormat::kFp32, out.codes.data(),
                         out.scales.data());
       },
       [&] {
         on_threads(threads, pieces, [&](std::int64_t i) {
           const std::int64_t begin = i * kPiece;
           std::memcpy(to.data() + begin, from.data() + begin,
                       static_cast<std::size_t>(std::min(kPiece, std::ssize(from) - begin)));
         });
       }},
      flags.repeats);
  return {bytes, medians[0], medians[1], is_right(out, x.data())};
}

}  // namespace

KernelReport bench_quantizer(const KernelFlags& flags) {
  const int threads = flags.engine.threads > 0 ? flags.engine.threads : host::allowed_cores();
  const auto engine = make_engine(flags.engine.kind(), 0,
                                  {.threads = threads, .gemm_kernel = flags.engine.gemm_kernel});
  KernelReport report;
  report.json = {{"benchmark", "rowband bench --quantizer"},
                 {"engine", engine->description()},
                 {"threads", threads},
                 {"results", nlohmann::ordered_json::array()}};
  Table table({{"M"},
               {"K"},
               {"bytes moved"},
               {"quantise ms"},
               {"GB/s"},
               {"copy ms"},
               {"GB/s"},
               {"of the copy"}});
  for (const std::int64_t depth : flags.depths) {
    for (const std::int64_t rows : flags.rows) {
      const QuantizerTimes t = time_shape(*engine, flags, threads, rows, depth);
      report.ok = report.ok && t.right;
      const auto speed = [&](double ms) { return static_cast<double>(t.bytes) / ms / 1e6; };
      table.add({fmt::format("{}", rows), fmt::format("{}", depth), bytes_text(t.bytes),
                 t.right ? fmt::format("{:.3f}", t.quantize_ms) : "wrong",
                 t.right ? fmt::format("{:.1f}", speed(t.quantize_ms)) : "",
                 fmt::format("{:.3f}", t.copy_ms), fmt::format("{:.1f}", speed(t.copy_ms)),
                 t.right ? fmt::format("{:.2f}", t.copy_ms / t.quantize_ms) : ""});
      nlohmann::ordered_json entry = {
          {"rows", rows}, {"depth", depth}, {"bytes", t.bytes}, {"ok", t.right}};
      if (t.right) {
        entry["quantize_ms"] = t.quantize_ms;
        entry["copy_ms"] = t.copy_ms;
      }
      report.json["results"].push_back(std::move(entry));
    }
  }
  report.text = fmt::format(
      "engine  {}\n\n{}\nMedians, the two in turn. Bytes are those read and written: bf16 in, e4m3 "
      "codes and fp32 scales out;\nthe copy reads and writes as many, on as many threads.\n",
      engine->description(), table.markdown());
  return report;
}

}  // namespace rowband::cli
