#include "rowband/cli/arms.h"

#include "rowband/base/fail.h"
#include "rowband/cli/options.h"
#include "rowband/numerics/quantize.h"

namespace rowband::cli {
namespace {

// GEMM, then the communicator's all-reduce, as engines do without this library.
class BaseArm final : public Arm {
 public:
  BaseArm(Communicator& comm, std::shared_ptr<Engine> engine, const ArmSpec& spec,
          const Fp8Weight& weight, const std::vector<Bf16>& bias, const LayerOptions& options)
      : Arm(spec),
        comm_(comm),
        engine_(std::move(engine)),
        weight_(weight.view()),
        bias_(bias.empty() || comm.rank() != 0 ? nullptr : bias.data()),
        deadline_(options.deadline),
        result_(static_cast<std::size_t>(options.max_rows * weight.cols)) {}

  Output run(const ActivationView& x, Timeline* timeline) override {
    engine_->gemm(x, weight_, bias_, result_.data(), timeline);
    gemm_end_ns_ = now_ns();
    comm_.all_reduce(result_.data(), x.rows * weight_.cols, Deadline::after(deadline_));
    return {result_.data(), x.rows, weight_.cols};
  }
  std::int64_t fused_calls() const override { return 0; }
  std::optional<std::int64_t> gemm_end_ns() const override { return gemm_end_ns_; }

 private:
  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  const WeightView weight_;
  const Bf16* bias_;  // of rank 0, since it is added once
  const std::chrono::nanoseconds deadline_;
  std::vector<Bf16> result_;
  std::int64_t gemm_end_ns_ = 0;
};

class FusedArm final : public Arm {
 public:
  FusedArm(const ArmSpec& spec, const Fp8Weight& weight, const std::vector<Bf16>& bias,
           std::unique_ptr<GemmAllReduce> op)
      : Arm(spec),
        weight_(weight.view()),
        bias_(bias.empty() ? nullptr : bias.data()),
        op_(std::move(op)) {}

  Output run(const ActivationView& x, Timeline* timeline) override {
    return op_->run(x, weight_, bias_, nullptr, timeline);
  }
  std::int64_t fused_calls() const override { return op_->calls(); }
  std::optional<std::int64_t> gemm_end_ns() const override { return std::nullopt; }

 private:
  const WeightView weight_;
  const Bf16* bias_;
  const std::unique_ptr<GemmAllReduce> op_;
};

}  // namespace

const std::vector<ArmSpec>& all_arms() {
  static const std::vector<ArmSpec> arms = {
      {"base"},
      {"bf16-direct", true, Wire::kBf16, Transport::kDirect},
      {"bf16-copy_engine", true, Wire::kBf16, Transport::kCopyEngine},
      {"fp8-direct", true, Wire::kFp8, Transport::kDirect},
      {"fp8-copy_engine", true, Wire::kFp8, Transport::kCopyEngine}};
  return arms;
}

ArmSpec parse_arm(std::string_view name) {
  std::string legal;
  for (const ArmSpec& arm : all_arms()) {
    if (arm.name == name) return arm;
    legal += fmt::format("{}'{}'", legal.empty() ? "" : ", ", arm.name);
  }
  fail(ErrorCode::kInvalidArgument, "arm '{}' is not one of {}", name, legal);
}

std::unique_ptr<Arm> make_arm(Communicator& comm, const std::shared_ptr<Engine>& engine,
                              const ArmSpec& spec, const Fp8Weight& weight,
                              const std::vector<Bf16>& bias, const LayerOptions& options) {
  if (!spec.fused) return std::make_unique<BaseArm>(comm, engine, spec, weight, bias, options);
  LayerOptions fused = options;
  fused.wire = spec.wire;
  fused.transport = spec.transport;
  auto op = GemmAllReduce::create(comm, engine, op_options(fused, weight.cols, weight.depth));
  return std::make_unique<FusedArm>(spec, weight, bias, std::move(op));
}

QuantizedActivations::QuantizedActivations(Engine& engine, const Bf16* x, std::int64_t m,
                                           std::int64_t k, std::int64_t x_row_stride)
    : codes(static_cast<std::size_t>(m * k)),
      scales(static_cast<std::size_t>(m * (k / kScaleBlock))),
      rows(m),
      depth(k) {
  engine.quantize(x, rows, depth, x_row_stride, ScaleFormat::kFp32, codes.data(), scales.data());
}

ActivationView QuantizedActivations::view() const {
  return {codes.data(), rows, depth, depth, scales.data(), depth / kScaleBlock, 1};
}

}  // namespace rowband::cli
