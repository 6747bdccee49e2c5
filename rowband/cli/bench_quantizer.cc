#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rowband/cli/arms.h"
#include "rowband/cli/bench_kernels.h"
#include "rowband/cli/kernel_timing.h"
#include "rowband/cli/random_operands.h"
#include "rowband/cli/table.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/cli/measure.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/cuda/gpu_timer.h"
#endif
#include "rowband/engines/host/machine.h"
#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

struct QuantizerTimes {
  std::int64_t bytes;  // read and written by one call: bf16 in, codes and scales out
  double quantize_ms, copy_ms;
  bool right;
};

std::int64_t bytes_moved(std::int64_t rows, std::int64_t depth) {
  return rows * (depth * 3 + depth / kScaleBlock * static_cast<std::int64_t>(sizeof(float)));
}

// Whether the engine's bits, its scales laid as `view` says, are those of the scalar formula.
bool is_right(const Bf16* x, const ActivationView& view, const std::vector<E4m3>& codes,
              const std::vector<float>& scales) {
  const std::int64_t blocks = view.depth / kScaleBlock;
  std::vector<E4m3> want_codes(codes.size());
  std::vector<float> want_scales(scales.size());
  quantize_activations(x, view.rows, view.depth, view.depth, ScaleFormat::kFp32, want_codes.data(),
                       view.depth, want_scales.data());
  for (std::int64_t row = 0; row < view.rows; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      const auto at = row * view.scale_row_stride + block * view.scale_block_stride;
      if (scales[static_cast<std::size_t>(at)] !=
          want_scales[static_cast<std::size_t>(row * blocks + block)]) {
        return false;
      }
    }
  }
  return codes == want_codes;
}

#ifdef ROWBAND_HAVE_CUDA
// Several calls at a time, by the GPU's clock, over two sets of memory in turn.
QuantizerTimes time_on_gpu(Engine& engine, const KernelFlags& flags, std::int64_t rows,
                           std::int64_t depth) {
  constexpr int kSets = 2, kCalls = 10, kRepeats = 20;
  const auto x = random_activations(flags.seed, 0, rows, 0, depth);
  const std::int64_t bytes = bytes_moved(rows, depth), half = bytes / 2;
  std::vector<E4m3> codes(static_cast<std::size_t>(rows * depth));
  std::vector<float> scales(static_cast<std::size_t>(rows * depth / kScaleBlock));
  struct Set {
    std::shared_ptr<const void> x;
    std::shared_ptr<void> codes, scales, from, to;
  };
  std::vector<Set> sets;
  for (int i = 0; i < kSets; ++i) {
    sets.push_back({engine.upload(x.data(), x.size() * sizeof(Bf16)), engine.allocate(codes.size()),
                    engine.allocate(scales.size() * sizeof(float)),
                    engine.allocate(static_cast<std::size_t>(half)),
                    engine.allocate(static_cast<std::size_t>(half))});
  }
  std::vector<double> quantize_ms, copy_ms;
  bool right = false;
  run_ranks(1, [&](Communicator& comm) {
    cuda::GpuTimer timer(comm, engine.device(), Deadline::after(std::chrono::seconds(20)));
    const auto quantize = [&](const Set& set) {
      return engine.quantize(static_cast<const Bf16*>(set.x.get()), rows, depth, depth,
                             ScaleFormat::kFp32, static_cast<E4m3*>(set.codes.get()),
                             static_cast<float*>(set.scales.get()), timer.stream());
    };
    const auto copy = [&](const Set& set) {
      engine.copy(set.to.get(), set.from.get(), static_cast<std::size_t>(half), timer.stream());
    };
    const auto timed = [&](const auto& work) {
      timer.begin();
      for (int i = 0; i < kCalls; ++i) work(sets[static_cast<std::size_t>(i % kSets)]);
      timer.end();
      return timer.microseconds() / kCalls / 1e3;
    };
    for (int i = 0; i <= (flags.repeats > 0 ? flags.repeats : kRepeats); ++i) {
      const double one = timed(quantize), other = timed(copy);
      if (i == 0) continue;  // warms up
      quantize_ms.push_back(one);
      copy_ms.push_back(other);
    }
    const ActivationView view = quantize(sets.front());
    engine.download(codes.data(), sets.front().codes.get(), codes.size(), timer.stream());
    engine.download(scales.data(), sets.front().scales.get(), scales.size() * sizeof(float),
                    timer.stream());
    right = is_right(x.data(), view, codes, scales);
  });
  return {bytes, median(std::move(quantize_ms)), median(std::move(copy_ms)), right};
}
#endif

QuantizerTimes time_on_host(Engine& engine, const KernelFlags& flags, int threads,
                            std::int64_t rows, std::int64_t depth) {
  const auto x = random_activations(flags.seed, 0, rows, 0, depth);
  QuantizedActivations out(engine, x.data(), rows, depth, depth);
  const std::int64_t bytes = bytes_moved(rows, depth);
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
  return {bytes, medians[0], medians[1], is_right(x.data(), out.view(), out.codes, out.scales)};
}

QuantizerTimes time_shape(Engine& engine, const KernelFlags& flags, int threads, std::int64_t rows,
                          std::int64_t depth) {
#ifdef ROWBAND_HAVE_CUDA
  if (!engine.on_host()) return time_on_gpu(engine, flags, rows, depth);
#endif
  return time_on_host(engine, flags, threads, rows, depth);
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
      "codes and fp32 scales out;\nthe copy reads and writes as many, on as many threads or the "
      "same GPU.\n",
      engine->description(), table.markdown());
  return report;
}

}  // namespace rowband::cli
