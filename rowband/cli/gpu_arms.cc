#include "rowband/cli/gpu_arms.h"

#include <algorithm>

#include "rowband/base/fail.h"
#include "rowband/cli/options.h"
#include "rowband/cli/verify.h"

namespace rowband::cli {
namespace {

// The two GEMMs add in another order; at W = 2 the sums of equal partials are equal.
constexpr double kOtherGemm = 1e-3, kSameGemm = 3e-5;
constexpr std::int64_t kNanRows = 256;

}  // namespace

GpuArms::GpuArms(Communicator& comm, std::shared_ptr<Engine> engine, AllReduce& all_reduce,
                 const std::vector<ArmSpec>& fused, const LayerOptions& options, std::int64_t cols,
                 std::int64_t depth)
    : comm_(comm),
      engine_(std::move(engine)),
      all_reduce_(all_reduce),
      cols_(cols),
      depth_(depth),
      deadline_(options.deadline),
      max_rows_(options.max_rows) {
  if (const auto why = cuda::why_no_cublas(); !why.empty()) {
    not_served_.push_back(std::string(kCublasArm) + ": " + why);
  } else {
    cublas_.emplace(engine_->device(), engine_->allocate(cuda::CublasGemm::kWorkspaceBytes));
  }
  out_ = engine_->allocate(static_cast<std::size_t>(options.max_rows * cols) * sizeof(Bf16));
  const std::vector<Bf16> nan(static_cast<std::size_t>(kNanRows * cols), Bf16{0x7FC0});
  nan_rows_ = engine_->upload(nan.data(), nan.size() * sizeof(Bf16));
  const auto out = static_cast<Bf16*>(out_.get());
  const auto serves_all = [](std::int64_t) { return std::string(); };
  const auto base = [this, out](bool own) {
    return [this, out, own](const ActivationView& x, const WeightView& w, void* stream) {
      gemm(own, x, w, stream);
      all_reduce_.run(out, x.rows * cols_, Deadline::after(deadline_), stream);
      return static_cast<const Bf16*>(out);
    };
  };
  const auto alone = [this, out](bool own) {
    return [this, out, own](const ActivationView& x, const WeightView& w, void* stream) {
      gemm(own, x, w, stream);
      return static_cast<const Bf16*>(out);
    };
  };
  arms_.push_back({kBaseArm, {}, 0, 0, true, base(!cublas_), serves_all, nullptr});
  arms_.push_back({kOwnBaseArm, {}, 0, kOtherGemm, true, base(true), serves_all, nullptr});
  for (const ArmSpec& spec : fused) add_fused(spec, options);
  const int own = static_cast<int>(arms_.size());
  arms_.push_back({kOwnGemmArm, {}, own, 0, false, alone(true), serves_all, nullptr});
  if (!cublas_) return;
  arms_.push_back({kCublasArm,
                   {},
                   own,
                   kOtherGemm,
                   false,
                   alone(false),
                   [this](std::int64_t rows) { return why_no_cublas(rows); },
                   nullptr});
}

// Asked with addresses that are aligned as the operands' are.
std::string GpuArms::why_no_cublas(std::int64_t rows) {
  const auto* codes = static_cast<const E4m3*>(out_.get());
  const auto* scales = static_cast<const float*>(out_.get());
  return cublas_->why_not(
      {codes, rows, depth_, depth_, scales, 1, rows},
      {codes, cols_, depth_, depth_, scales, (depth_ / kScaleBlock + 3) / 4 * 4, 1});
}

void GpuArms::spoil(void* stream) {
  for (std::int64_t row = 0; row < max_rows_; row += kNanRows) {
    const std::int64_t rows = std::min(kNanRows, max_rows_ - row);
    engine_->copy(static_cast<Bf16*>(out_.get()) + row * cols_, nan_rows_.get(),
                  static_cast<std::size_t>(rows * cols_) * sizeof(Bf16), stream);
  }
}

// cuBLASLt has no algorithm for a few shapes; the own GEMM takes its place there.
void GpuArms::gemm(bool own, const ActivationView& x, const WeightView& w, void* stream) {
  const auto out = static_cast<Bf16*>(out_.get());
  if (own || !cublas_ || !cublas_->why_not(x, w, out).empty()) {
    engine_->gemm(x, w, nullptr, out, nullptr, stream);
  } else {
    cublas_->run(x, w, out, static_cast<cudaStream_t>(stream));
  }
}

void GpuArms::add_fused(const ArmSpec& spec, const LayerOptions& options) {
  LayerOptions changed = options;
  changed.wire = spec.wire;
  changed.transport = spec.transport;
  const GemmAllReduceOptions op_of = op_options(changed, cols_, depth_);
  const PlanSpec plan = GemmAllReduce::plan_spec(*engine_, op_of, comm_.size());
  if (const auto why = engine_->why_not_served(plan); !why.empty()) {
    not_served_.push_back(fmt::format("{}: {}", spec.name, why));
    return;
  }
  const std::shared_ptr<GemmAllReduce> op = GemmAllReduce::create(comm_, engine_, op_of);
  // The library's all-reduce rounds at each step of more than two ranks; the fp8 wire rounds more.
  const double limit = spec.wire == Wire::kFp8 ? tolerance(Wire::kFp8)
                       : comm_.size() <= 2     ? kSameGemm
                                               : 2 * tolerance(Wire::kBf16);
  arms_.push_back({std::string(spec.name), spec, 1, limit, true,
                   [op](const ActivationView& x, const WeightView& w, void* stream) {
                     return op->run(x, w, nullptr, nullptr, nullptr, stream).data;
                   },
                   [op](std::int64_t rows) { return op->why_not_rows(rows); }, op});
}

std::string GpuArms::failure() const {
  for (const GpuArm& arm : arms_) {
    if (arm.op == nullptr) continue;
    if (auto reason = arm.op->poison(); !reason.empty()) return arm.name + ": " + reason;
  }
  return all_reduce_.poison();
}

}  // namespace rowband::cli
