// The ways to compute a layer on a GPU that `rowband bench --engine cuda` times against each other:
// the base path (cuBLASLt's block-scale GEMM, then the all-reduce), the fused calls, and the two
// GEMMs alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rowband/cli/arms.h"
#include "rowband/engines/cuda/cublas_gemm.h"

namespace rowband::cli {

// One rank's end of an arm. Calls are queued on the given stream; those of the base and fused arms
// are collective.
struct GpuArm {
  std::string name;
  std::optional<ArmSpec> fused;  // none for the base path and the GEMMs
  int like = 0;                  // the arm whose result this one's is compared with, itself if none
  double limit = 0;              // of the relative L2 of the two
  bool on_all_ranks = true;      // the result is the same on every rank
  std::function<const Bf16*(const ActivationView&, const WeightView&, void* stream)> call;
  std::function<std::string(std::int64_t rows)> why_not;  // "" or why it does not serve them
  std::shared_ptr<GemmAllReduce> op;                      // of fused arms
};

// What of the arms is named in reports.
inline constexpr const char *kBaseArm = "base", *kOwnGemmArm = "own GEMM", *kCublasArm = "cuBLASLt",
                            *kOwnBaseArm = "base, own GEMM";

class GpuArms {
 public:
  // Collective, and then every rank has the same arms, base first. `fused` are the arms to make;
  // what the engine does not serve is in not_served() instead.
  // `all_reduce` is the base path's and must outlive the arms.
  GpuArms(Communicator& comm, std::shared_ptr<Engine> engine, AllReduce& all_reduce,
          const std::vector<ArmSpec>& fused, const LayerOptions& options, std::int64_t cols,
          std::int64_t depth);
  GpuArms(const GpuArms&) = delete;  // the arms lead here
  GpuArms& operator=(const GpuArms&) = delete;

  const std::vector<GpuArm>& arms() const { return arms_; }
  const std::vector<std::string>& not_served() const { return not_served_; }
  // Makes what lies in the output of the base path and the GEMMs not a number, so that an arm that
  // writes nothing is found out.
  void spoil(void* stream);
  // "" or why a call failed.
  std::string failure() const;

 private:
  std::string why_no_cublas(std::int64_t rows);
  void gemm(bool own, const ActivationView& x, const WeightView& w, void* stream);
  void add_fused(const ArmSpec& spec, const LayerOptions& options);

  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  AllReduce& all_reduce_;
  const std::int64_t cols_, depth_;
  const std::chrono::nanoseconds deadline_;
  std::optional<cuda::CublasGemm> cublas_;
  const std::int64_t max_rows_;
  std::shared_ptr<void> out_;  // [max_rows, cols] bf16: of the base path and the GEMMs
  std::shared_ptr<const void> nan_rows_;
  std::vector<GpuArm> arms_;
  std::vector<std::string> not_served_;
};

}  // namespace rowband::cli
