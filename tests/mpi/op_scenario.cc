// One rank of a job in which the op meets the worst; op_scenarios_test.sh runs it under mpirun. A
// rank that saw what it should prints "ok" and its rank.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "rowband/comm/mpi.h"
#include "rowband/layer/row_parallel_linear.h"
#include "rowband/testing/exact.h"

namespace {

using namespace rowband;
using namespace std::chrono_literals;

constexpr std::int64_t kCols = 64, kDepth = 128, kRows = 512;

void say_ok(int rank, const std::string& what) {
  std::printf("ok rank %d: %s\n", rank, what.c_str());
  std::fflush(stdout);
}

std::unique_ptr<GemmAllReduce> make(Communicator& comm, const GemmAllReduceOptions& options) {
  return GemmAllReduce::create(comm, test_engine(comm.rank()), options);
}

// Rank 2 dies inside its fifth call; the others must not wait for their deadline of 60 s, and end
// as a program does that lets the error out.
int killed_in_call(Communicator& comm) {
  auto options = exact_options(kRows, kCols, kDepth);
  auto faults = std::make_shared<FaultHooks>();
  if (comm.rank() == 2) faults->kill_in_call = 5;
  options.faults = faults;
  options.self_test = false;
  const auto op = make(comm, options);
  const ExactWeight w(kCols, kDepth);
  for (int call = 1; call < 5; ++call) run_exact(comm, *op, w, kRows, call);
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_exact(comm, *op, w, kRows, 5);
  } catch (const Error& error) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::string text = error.what();
    if (text.find("rank 2 is gone") == std::string::npos || took > 20s) {
      std::fprintf(stderr, "FAILED after %g s: %s\n", took.count(), text.c_str());
      return 1;
    }
    say_ok(comm.rank(), text);
    std::this_thread::sleep_for(2s);  // the launcher may end all ranks when one fails
    return 1;
  }
  std::fprintf(stderr, "FAILED: rank %d finished the call\n", comm.rank());
  return 1;
}

// Calls without end, until it is killed in one of them.
int endless(Communicator& comm) {
  const auto op = make(comm, exact_options(kRows, kCols, kDepth));
  const ExactWeight w(kCols, kDepth);
  run_exact(comm, *op, w, kRows, 0);
  std::printf("pid %d calls\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  for (int call = 1;; ++call) run_exact(comm, *op, w, 1 + call % kRows, call);
}

int work(Communicator& comm) {
  const auto op = make(comm, exact_options(kRows, kCols, kDepth));
  const ExactWeight w(kCols, kDepth);
  for (int call = 1; call <= 200; ++call) run_exact(comm, *op, w, call, call);
  say_ok(comm.rank(), "200 calls");
  return 0;
}

// A window larger than a /dev/shm of 64 MiB: the layer says so and serves by the base path.
int small_shm(Communicator& comm) {
  const ExactWeight w(kCols, kDepth);
  LayerOptions options;
  options.policy.enabled = true;
  options.max_rows = 1 << 19;
  const auto layer = RowParallelLinear::create(comm, test_engine(comm.rank()),
                                               {.cols = kCols,
                                                .depth = kDepth,
                                                .depth_begin = 0,
                                                .total_depth = kDepth,
                                                .codes = w.codes,
                                                .scales = w.scales},
                                               {}, options);
  const Verdict verdict = layer->verdict(kRows);
  std::vector<Bf16> x(kRows * kDepth);
  for (std::int64_t i = 0; i < kRows * kDepth; ++i) {
    x[i] = to_bf16(static_cast<float>(exact_x(comm.rank(), i / kDepth, 1)));
  }
  const Output y = layer->forward(x.data(), kRows, kDepth);
  const std::string difference = exact_difference(y, kRows, kDepth, comm.size(), 1);
  if (verdict.decision != Decision::kUnavailable || !difference.empty() ||
      verdict.reason.find("/dev/shm") == std::string::npos) {
    std::fprintf(stderr, "FAILED: verdict '%s', difference '%s'\n", verdict.reason.c_str(),
                 difference.c_str());
    return 1;
  }
  say_ok(comm.rank(), verdict.reason);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, std::function<int(Communicator&)>> scenarios = {
      {"killed_in_call", killed_in_call},
      {"endless", endless},
      {"work", work},
      {"small_shm", small_shm}};
  const auto scenario = scenarios.find(argc == 2 ? argv[1] : "");
  if (scenario == scenarios.end()) {
    std::fprintf(stderr, "usage: op_scenario killed_in_call|endless|work|small_shm\n");
    return 2;
  }
  try {
    const auto comm = make_mpi_world_communicator();
    return scenario->second(*comm);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
}
