// The ways to compute one layer that are measured against each other.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/cli/measure.h"
#include "rowband/comm/communicator.h"
#include "rowband/engines/engine.h"
#include "rowband/io/checkpoint.h"
#include "rowband/layer/row_parallel_linear.h"

namespace rowband::cli {

struct ArmSpec {
  std::string_view name;
  bool fused = false;
  Wire wire = Wire::kBf16;
  Transport transport = Transport::kDirect;
};

// "base", "bf16-direct", ... Throws Error(kInvalidArgument) listing them.
ArmSpec parse_arm(std::string_view name);
const std::vector<ArmSpec>& all_arms();  // base first

// One rank's end of an arm. Calls are collective.
class Arm {
 public:
  explicit Arm(const ArmSpec& spec) : spec_(spec) {}
  virtual ~Arm() = default;

  const ArmSpec& spec() const { return spec_; }
  // The result lives until the next call.
  virtual Output run(const ActivationView& x, Timeline* timeline) = 0;
  // Calls that the fused path began; always 0 on the base path.
  virtual std::int64_t fused_calls() const = 0;
  // When the GEMM of the last call was done and the all-reduce began; none where they overlap.
  virtual std::optional<std::int64_t> gemm_end_ns() const = 0;

 private:
  const ArmSpec spec_;
};

// Collective. `weight` and `bias` (empty or [N]) must outlive the arm. Throws as
// GemmAllReduce::create.
std::unique_ptr<Arm> make_arm(Communicator& comm, const std::shared_ptr<Engine>& engine,
                              const ArmSpec& spec, const Fp8Weight& weight,
                              const std::vector<Bf16>& bias, const LayerOptions& options);

// Activations quantised by the engine before anything is timed.
struct QuantizedActivations {
  std::vector<E4m3> codes;
  std::vector<float> scales;
  std::int64_t rows = 0;
  std::int64_t depth = 0;

  QuantizedActivations(Engine& engine, const Bf16* x, std::int64_t rows, std::int64_t depth,
                       std::int64_t x_row_stride);
  ActivationView view() const;
};

}  // namespace rowband::cli
