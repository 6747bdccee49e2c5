// Arms against each other on the same operands: checked, timed in turn, checked again.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "rowband/cli/arms.h"
#include "rowband/cli/measure.h"

namespace rowband::cli {

struct CompareOptions {
  int repeats = 0;  // per arm; 0 takes 20, and fewer, but at least 5, of slow calls
  int threads = 1;  // per rank, for the reference
  std::chrono::nanoseconds deadline = kDefaultDeadline;
};

struct ArmResult {
  ArmSpec spec;
  std::string wrong;       // why there are no times; "" when every check passed
  bool same_bits = false;  // on all ranks, in every checked call
  double relative_l2 = 0;  // against the float64 reference, the worst of the checked calls
  std::vector<double> ms;  // one per repetition
  std::vector<double> skew_ms;
  std::vector<double> gemm_ms;  // base only
  std::vector<double> all_reduce_ms;
};

// `arms` begin with the base path. The repetitions rotate through `sets` of activations, all of the
// same shape. No arm that gave a wrong result, before or after, keeps a time. Collective;
// every rank gets the same.
std::vector<ArmResult> compare_arms(Communicator& comm, Engine& engine, const Fp8Weight& weight,
                                    const std::vector<Bf16>& bias,
                                    const std::vector<QuantizedActivations>& sets,
                                    const std::vector<std::unique_ptr<Arm>>& arms,
                                    const CompareOptions& options);

}  // namespace rowband::cli
