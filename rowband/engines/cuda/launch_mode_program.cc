// Started by launch_modes_test.cc with variables that CUDA reads at its first use.
//   cuda_launch_mode_program WORLD DEVICES TRANSPORT [other-work]
// makes an op of each wire that is served, and on each 100 exact calls, then replays of a captured
// one, and by transport direct the base path's sums; with work on two other streams beside them if
// told so. Says "exact", or how it ended:
//   exit status 0 exact, 3 refused at construction, 1 anything else
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string_view>
#include <utility>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/graph_support.h"

namespace rowband::cuda {
namespace {

constexpr int kCalls = 100, kReplays = 20, kSums = 10;

class OtherWork {
 public:
  explicit OtherWork(Engine& engine) : memory_(device_array<char>(engine, 2 * kBytes)) {}
  void queue() const {
    check(cudaMemsetAsync(memory_.get(), 1, kBytes, first_.get()), "other work");
    check(cudaMemcpyAsync(memory_.get() + kBytes, memory_.get(), kBytes, cudaMemcpyDeviceToDevice,
                          second_.get()),
          "other work");
  }

 private:
  static constexpr std::int64_t kBytes = 1 << 20;
  const std::shared_ptr<char> memory_;
  const TestStream first_, second_;
};

std::unique_ptr<GemmAllReduce> make(Communicator& comm, const std::shared_ptr<Engine>& engine,
                                    const GemmAllReduceOptions& options) {
  try {
    return GemmAllReduce::create(comm, engine, options);
  } catch (const Error& error) {
    if (comm.rank() == 0) std::printf("refused: %s\n", error.what());
    return nullptr;
  }
}

void replay_a_captured_call(const ExactCalls& calls, const std::function<void()>& beside) {
  Output y;
  const Graph graph(calls.stream(), [&] { y = calls.run(700); });
  for (int call = kCalls + 1; call <= kCalls + kReplays; ++call) {
    beside();
    calls.fill(700, call);
    graph.replay();
    calls.check(y, call);
  }
  calls.expect_exact();
}

// Collective. What the layer does with a declined call.
void sum_on_the_base_path(Communicator& comm, Engine& engine, const ExactCalls& calls,
                          const std::function<void()>& beside) {
  const auto deadline = [] { return Deadline::after(std::chrono::seconds(20)); };
  constexpr std::int64_t kRows = 300;
  const std::int64_t cols = calls.w().cols;
  const auto out = device_array<Bf16>(engine, kRows * cols);
  const auto sum = engine.make_all_reduce(comm, deadline());
  for (int call = 1; call <= kSums; ++call) {
    beside();
    calls.fill(kRows, call);
    engine.gemm(calls.x(kRows), calls.w(), nullptr, out.get(), nullptr, calls.stream());
    sum->run(out.get(), kRows * cols, deadline(), calls.stream());
    calls.check({out.get(), kRows, cols}, call);
  }
  calls.expect_exact();
  if (!sum->poison().empty()) throw std::runtime_error(sum->poison());
  comm.barrier(deadline());
}

// Whether it was served.
bool run(int world, int devices, const GemmAllReduceOptions& options, bool other_work,
         bool base_path) {
  bool refused = false;
  run_ranks(world, [&](Communicator& comm) {
    const auto engine = engine_for(comm.rank(), world, devices);
    const auto op = make(comm, engine, options);
    if (op == nullptr) {
      if (comm.rank() == 0) refused = true;
      return;
    }
    check(cudaSetDevice(comm.rank() % devices), "choosing the rank's device");
    load_test_kernels();
    const OtherWork other(*engine);
    const auto beside = [&] {
      if (other_work) other.queue();
    };
    const ExactCalls calls(comm, *engine, *op);
    for (int call = 1; call <= kCalls; ++call) {
      beside();
      calls.queue(call % 3 == 0 ? 1300 : 20, call);
    }
    calls.expect_exact();
    replay_a_captured_call(calls, beside);
    if (base_path) sum_on_the_base_path(comm, *engine, calls, beside);
    comm.barrier(Deadline::after(std::chrono::seconds(20)));
  });
  return !refused;
}

int run_all(int world, int devices, bool other_work, Transport transport) {
  GemmAllReduceOptions base = exact_options(1300, 320, 128);
  base.deadline = std::chrono::seconds(10);
  engine_for(0, 1, 1);                               // says why there is none, where there is none
  bool base_path = transport == Transport::kDirect;  // once: it knows neither wire nor transport
  for (const auto& options : served_variants(base, world)) {
    if (options.transport != transport || !has_the_gpus(options, world, devices)) continue;
    std::printf("%s\n", variant_name(options).c_str());
    if (!run(world, devices, options, other_work, std::exchange(base_path, false))) return 3;
  }
  std::printf("exact\n");
  return 0;
}

}  // namespace
}  // namespace rowband::cuda

int main(int count, char** arguments) {
  if (count < 4) {
    std::printf("usage: cuda_launch_mode_program WORLD DEVICES TRANSPORT [other-work]\n");
    return 2;
  }
  try {
    const bool other_work = count > 4 && std::string_view(arguments[4]) == "other-work";
    return rowband::cuda::run_all(std::atoi(arguments[1]), std::atoi(arguments[2]), other_work,
                                  rowband::parse_transport(arguments[3]));
  } catch (const rowband::Error& error) {
    std::printf("%s: %s\n", error.code() == rowband::ErrorCode::kUnavailable ? "refused" : "failed",
                error.what());
    return error.code() == rowband::ErrorCode::kUnavailable ? 3 : 1;
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 1;
  }
}
