#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "rowband/base/fail.h"
#include "rowband/cli/arms.h"
#include "rowband/cli/bench_kernels.h"
#include "rowband/cli/blas.h"
#include "rowband/cli/kernel_timing.h"
#include "rowband/cli/random_operands.h"
#include "rowband/cli/table.h"
#include "rowband/engines/host/machine.h"
#include "rowband/numerics/quantize.h"
#include "rowband/numerics/reference.h"

namespace rowband::cli {
namespace {

// Two engines that round at different places: the peer sums all of K in fp32 and rounds once.
constexpr double kAgreement = 4e-3;

// The operands as fp32 matrices, for a GEMM that knows no block scales. Plain loops over rows, on
// as many threads as the engine has.
class Dequantizer {
 public:
  Dequantizer(const ActivationView& x, const WeightView& w, int threads)
      : x_view_(x),
        w_view_(w),
        threads_(threads),
        x_(static_cast<std::size_t>(x.rows * x.depth)),
        w_(static_cast<std::size_t>(w.cols * w.depth)) {
    for (int bits = 0; bits < 256; ++bits) {
      values_[static_cast<std::size_t>(bits)] = to_float(E4m3{static_cast<std::uint8_t>(bits)});
    }
  }

  void run() {
    on_threads(threads_, x_view_.rows, [&](std::int64_t row) {
      widen(x_view_.codes + row * x_view_.row_stride,
            x_view_.scales + row * x_view_.scale_row_stride, x_.data() + row * x_view_.depth);
    });
    on_threads(threads_, w_view_.cols, [&](std::int64_t row) {
      widen(w_view_.codes + row * w_view_.row_stride,
            w_view_.scales + row / kScaleBlock * w_view_.scale_row_stride,
            w_.data() + row * w_view_.depth);
    });
  }
  const float* x() const { return x_.data(); }
  const float* w() const { return w_.data(); }

 private:
  void widen(const E4m3* codes, const float* scales, float* out) const {
    for (std::int64_t block = 0; block < x_view_.depth / kScaleBlock; ++block) {
      for (std::int64_t k = block * kScaleBlock; k < (block + 1) * kScaleBlock; ++k) {
        out[k] = values_[codes[k].bits] * scales[block];
      }
    }
  }

  const ActivationView x_view_;
  const WeightView w_view_;
  const int threads_;
  std::array<float, 256> values_{};
  std::vector<float> x_, w_;
};

struct GemmTimes {
  double own_ms, peer_ms, peer_gemm_ms;  // peer_gemm: its operands are fp32 already
  double difference;                     // relative L2 of one result against the other
};

GemmTimes time_shape(Engine& engine, const KernelFlags& flags, int threads, std::int64_t rows,
                     std::int64_t cols, std::int64_t depth) {
  const Fp8Weight weight = random_weight_slice(flags.seed, cols, depth, 0, 1);
  const auto bf16 = random_activations(flags.seed, 0, rows, 0, depth);
  const QuantizedActivations x(engine, bf16.data(), rows, depth, depth);
  std::vector<Bf16> own(static_cast<std::size_t>(rows * cols));
  std::vector<float> peer(own.size());
  Dequantizer dequantizer(x.view(), weight.view(), threads);
  const auto sgemm = [&] {
    blas_sgemm(dequantizer.x(), dequantizer.w(), peer.data(), rows, cols, depth, threads);
  };
  const auto medians =
      time_in_turn({[&] { engine.gemm(x.view(), weight.view(), nullptr, own.data(), nullptr); },
                    [&] {
                      dequantizer.run();
                      sgemm();
                    },
                    sgemm},
                   flags.repeats);
  const std::vector<double> wanted(peer.begin(), peer.end());
  return {medians[0], medians[1], medians[2], relative_l2(own, wanted)};
}

}  // namespace

KernelReport bench_gemm(const KernelFlags& flags) {
  if (!have_blas()) {
    fail(ErrorCode::kUnavailable,
         "bench --gemm needs OpenBLAS as the peer; build with -DROWBAND_OPENBLAS=ON");
  }
  const int threads = flags.engine.threads > 0 ? flags.engine.threads : host::allowed_cores();
  const auto engine = make_engine(flags.engine.kind(), 0,
                                  {.threads = threads, .gemm_kernel = flags.engine.gemm_kernel});
  KernelReport report;
  report.json = {{"benchmark", "rowband bench --gemm"},
                 {"engine", engine->description()},
                 {"peer", blas_description()},
                 {"threads", threads},
                 {"results", nlohmann::ordered_json::array()}};
  Table table({{"M"},
               {"N"},
               {"K"},
               {"rowband ms"},
               {"GFLOP/s"},
               {"dequantise + sgemm ms"},
               {"GFLOP/s"},
               {"sgemm alone ms"},
               {"GFLOP/s"},
               {"speed-up"},
               {"difference"}});
  for (const std::int64_t cols : flags.cols) {
    for (const std::int64_t depth : flags.depths) {
      for (const std::int64_t rows : flags.rows) {
        const GemmTimes t = time_shape(*engine, flags, threads, rows, cols, depth);
        const bool right = t.difference <= kAgreement;
        report.ok = report.ok && right;
        const double flops = 2e-6 * static_cast<double>(rows) * static_cast<double>(cols) *
                             static_cast<double>(depth);  // in millions, so that / ms gives G/s
        const auto ms = [&](double v) { return right ? fmt::format("{:.3f}", v) : "wrong"; };
        const auto speed = [&](double v) { return right ? fmt::format("{:.0f}", flops / v) : ""; };
        table.add({fmt::format("{}", rows), fmt::format("{}", cols), fmt::format("{}", depth),
                   ms(t.own_ms), speed(t.own_ms), ms(t.peer_ms), speed(t.peer_ms),
                   ms(t.peer_gemm_ms), speed(t.peer_gemm_ms),
                   right ? fmt::format("{:.2f}x", t.peer_ms / t.own_ms) : "",
                   fmt::format("{:.2e}", t.difference)});
        nlohmann::ordered_json entry = {{"rows", rows},
                                        {"cols", cols},
                                        {"depth", depth},
                                        {"ok", right},
                                        {"relative_l2_difference", t.difference}};
        if (right) {
          entry["rowband_ms"] = t.own_ms;
          entry["dequantise_and_sgemm_ms"] = t.peer_ms;
          entry["sgemm_ms"] = t.peer_gemm_ms;
        }
        report.json["results"].push_back(std::move(entry));
      }
    }
  }
  report.text = fmt::format(
      "engine  {}\npeer    {}, {} thread{}\n\n{}\nMedians, the three in turn. Speed-up is against "
      "dequantise + sgemm: block-scale fp8 operands in, as\nrowband takes them. Difference is the "
      "relative L2 of the two results (bf16 against fp32).\n",
      engine->description(), blas_description(), threads, threads == 1 ? "" : "s",
      table.markdown());
  return report;
}

}  // namespace rowband::cli
