// The fused op of ranks that are processes, one per GPU, over NCCL's windows; and who is refused.
// Skipped, with a message, without GPUs. scripts/test-gpu runs these.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/comm/conformance.h"
#include "rowband/comm/gpu_test_support.h"
#include "rowband/comm/nccl.h"
#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/graph_support.h"
#include "rowband/engines/cuda/window.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/testing/open_files.h"

namespace rowband::cuda {
namespace {

using comm::expect_all_fine;
using comm::run_gpu_ranks;
using comm::conformance::expect_error;
using comm::conformance::soon;
using testing::HasSubstr;
using namespace std::chrono_literals;

void require(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kCorrupted, "{}", what);
}

std::shared_ptr<Engine> engine_on(int device, int device_ranks = 1) {
  EngineOptions options;
  options.device = device;
  options.device_ranks = device_ranks;
  return make_cuda_engine(options);
}

GemmAllReduceOptions quick_options() {
  GemmAllReduceOptions options = exact_options(1300, 320, 128);
  options.deadline = 20s;
  return options;
}

// Collective: `calls` of alternating shapes, one behind the other; their data depend on `first`.
void run_calls(Communicator& comm, Engine& engine, GemmAllReduce& op, int calls,
               std::int64_t first = 1) {
  check(cudaSetDevice(engine.device()), "choosing the rank's device");
  load_test_kernels();
  const ExactCalls exact(comm, engine, op);
  const std::int64_t rows[] = {op.spec().max_rows, 1, 300, 0, 257};
  for (std::int64_t call = first; call < first + calls; ++call) {
    const Output y = exact.queue(rows[call % 5], call);
    require(y.rows == rows[call % 5] && y.cols == op.spec().cols, "a result of another shape");
  }
  exact.expect_exact();
}

// A whole op on `device`: made, called, destroyed.
void exercise(Communicator& comm, int device, int calls) {
  const auto engine = engine_on(device);
  const auto op = GemmAllReduce::create(comm, engine, quick_options());
  run_calls(comm, *engine, *op, calls);
  comm.barrier(soon());
}

TEST(CudaProcesses, ExactOnEveryWireAndTransport) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(callbacks.rank);
    int served = 0;
    for (const auto& options : all_modes(quick_options())) {
      if (!engine->why_not_served(GemmAllReduce::plan_spec(*engine, options, 2)).empty()) continue;
      const auto op = GemmAllReduce::create(*comm, engine, options);
      run_calls(*comm, *engine, *op, 40);
      comm->barrier(soon());
      ++served;
    }
    require(served > 0, "no mode is served");
  }));
}

TEST(CudaProcesses, B05_R01_ManyCallsExactFromTheFirstActOn) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    exercise(*make_callback_communicator(callbacks), callbacks.rank, 10'000);
  }));
}

TEST(CudaProcesses, ExactThroughTheNcclCommunicator) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    exercise(*make_nccl_communicator(*bootstrap, callbacks.rank), callbacks.rank, 100);
  }));
}

TEST(CudaProcesses, P05_EachRankSeesOnlyItsOwnGpuAsTheFirst) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    setenv("CUDA_VISIBLE_DEVICES", std::to_string(callbacks.rank).c_str(), 1);
    exercise(*make_callback_communicator(callbacks), 0, 50);
  }));
}

// Multicast is off on many machines; the op needs none.
TEST(CudaProcesses, P03_ServedWithoutMulticast) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    exercise(*make_callback_communicator(callbacks), callbacks.rank, 50);
  }));
}

TEST(CudaProcesses, P07_NcclsWindowsNeedNoPidfdGetfd) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    comm::forbid_pidfd_getfd(/*also_open=*/false);
    exercise(*make_callback_communicator(callbacks), callbacks.rank, 50);
  }));
}

// "GPU-01234567-89ab-...", as CUDA_VISIBLE_DEVICES takes it, asked for in a process of its own.
std::string uuid_of(int device) {
  int ends[2];
  require(pipe(ends) == 0, "a pipe");
  const pid_t child = fork();
  if (child == 0) {
    cudaDeviceProp properties;
    const bool known = cudaGetDeviceProperties(&properties, device) == cudaSuccess;
    const auto bytes = reinterpret_cast<const unsigned char*>(properties.uuid.bytes);
    const std::string hex = fmt::format("{:02x}", fmt::join(bytes, bytes + 16, ""));
    const std::string text = "GPU-" + hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" +
                             hex.substr(12, 4) + "-" + hex.substr(16, 4) + "-" + hex.substr(20);
    _exit(known && write(ends[1], text.data(), text.size()) == 40 ? 0 : 1);
  }
  std::string text(40, ' ');
  int status = 0;
  require(waitpid(child, &status, 0) == child && status == 0, "a GPU's UUID");
  require(read(ends[0], text.data(), text.size()) == 40, "a GPU's UUID");
  close(ends[0]);
  close(ends[1]);
  return text;
}

TEST(CudaProcesses, P06_UuidsInCudaVisibleDevices) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    setenv("CUDA_VISIBLE_DEVICES", uuid_of(callbacks.rank).c_str(), 1);
    exercise(*make_callback_communicator(callbacks), 0, 20);
  }));
}

TEST(CudaProcesses, P06_NoVisibleGpuIsSaidInWords) {
  for (const char* none : {"", "-1", "GPU-00000000-0000-0000-0000-000000000000"}) {
    expect_all_fine(run_gpu_ranks(1, 1, [=](const CommunicatorCallbacks&) {
      setenv("CUDA_VISIBLE_DEVICES", none, 1);
      require(device_count() == 0, "no GPU is visible");
      expect_error(ErrorCode::kUnavailable, {"this process sees none"}, [] { engine_on(0); });
    }));
  }
}

TEST(CudaProcesses, B05_ARegistrationWithoutAWindowFailsAtConstructionInWords) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(callbacks.rank);
    GemmAllReduceOptions options = quick_options();
    auto faults = std::make_shared<FaultHooks>();
    faults->register_null_window = callbacks.rank == 1;
    options.faults = faults;
    expect_error(ErrorCode::kUnavailable,
                 {"rank 1: NCCL's window failed", "ncclCommWindowRegister", "no window"},
                 [&] { GemmAllReduce::create(*comm, engine, options); });
    const auto op = GemmAllReduce::create(*comm, engine, quick_options());
    run_calls(*comm, *engine, *op, 20);
    comm->barrier(soon());
  }));
}

TEST(CudaProcesses, D01_O01_NoMemoryOnOneRankIsAnErrorOnBothAndTheNextOpWorks) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(callbacks.rank);
    GemmAllReduceOptions options = quick_options();
    auto faults = std::make_shared<FaultHooks>();
    faults->fail_window_allocation = callbacks.rank == 1;
    options.faults = faults;
    expect_error(ErrorCode::kOutOfMemory, {"rank 1: the symmetric window on the GPU failed"},
                 [&] { GemmAllReduce::create(*comm, engine, options); });
    const auto op = GemmAllReduce::create(*comm, engine, quick_options());
    run_calls(*comm, *engine, *op, 20);
    comm->barrier(soon());
  }));
}

TEST(CudaProcesses, ProcessesThatShareAGpuAreRefusedInWords) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(1);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(0, 2);
    expect_error(ErrorCode::kUnavailable, {"ranks 0 and 1 are different processes on one GPU"},
                 [&] { GemmAllReduce::create(*comm, engine, quick_options()); });
  }));
}

TEST(CudaProcesses, AMixtureOfThreadsAndProcessesIsRefusedInWords) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(4, 2, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(callbacks.rank / 2, 2);
    expect_error(ErrorCode::kUnavailable, {"ranks 0 and 1 are threads of one process"},
                 [&] { GemmAllReduce::create(*comm, engine, quick_options()); });
  }));
}

// Killed before a call, or in the middle of one: what it is to hand over takes it up to a second.
void expect_a_killed_peer_named(bool inside_a_call) {
  const auto outcomes = run_gpu_ranks(2, 1, [=](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    exercise(*comm, callbacks.rank, 5);
    const auto engine = engine_on(callbacks.rank);
    GemmAllReduceOptions options = quick_options();
    options.deadline = 2s;
    options.self_test = false;
    auto faults = std::make_shared<FaultHooks>();
    if (inside_a_call && callbacks.rank == 1) faults->jitter = 1s;
    options.faults = faults;
    const auto op = GemmAllReduce::create(*comm, engine, options);
    const OnDevice<ExactWeight> w(*engine, ExactWeight(320, 128));
    const OnDevice<ExactActivations> x(*engine, ExactActivations(1300, 128, callbacks.rank, 1));
    comm->barrier(soon());
    if (callbacks.rank == 1) {
      if (inside_a_call) {
        op->run(x.view(), w.view());
        std::this_thread::sleep_for(50ms);
      }
      raise(SIGKILL);
    }
    const auto begin = std::chrono::steady_clock::now();
    std::string reason;
    try {  // a result that came all the same is right; the next one cannot come
      for (int call = 1; call < 3; ++call) run_exact_on_gpu(*comm, *engine, *op, w, 1300, call);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    require(reason.find("rank 1") != std::string::npos, "got '" + reason + "'");
    require(took < 4s, fmt::format("the error took {} s", took.count()));
    op->close();
    const auto alone = make_thread_communicators(1);
    exercise(*alone[0], 0, 20);
  });
  EXPECT_EQ(outcomes[0], "");
  EXPECT_EQ(outcomes[1], "signal 9");
}

TEST(CudaProcesses, D06_APeerKilledBeforeACallIsAnErrorWithinTheDeadline) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_a_killed_peer_named(false);
}

TEST(CudaProcesses, D06_APeerKilledInsideACallIsAnErrorWithinTheDeadlineAndBothGpusLiveOn) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_a_killed_peer_named(true);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    exercise(*make_callback_communicator(callbacks), callbacks.rank, 20);
  }));
}

// Whose windows must not be mixed up: each op has data, shapes and a number of calls of its own.
TEST(CudaProcesses, L05_TwoOpsInOneProcessTakeTurnsOnOneWindowEach) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    const auto engine = engine_on(callbacks.rank);
    check(cudaSetDevice(callbacks.rank), "choosing the rank's device");
    load_test_kernels();
    const auto one = GemmAllReduce::create(*comm, engine, quick_options());
    const auto two = GemmAllReduce::create(*comm, engine, quick_options());
    const auto stream = std::make_shared<TestStream>(*comm);
    const ExactCalls of_one(*comm, *engine, *one, stream), of_two(*comm, *engine, *two, stream);
    for (int call = 1; call <= 1000; ++call) {
      (call % 3 == 0 ? of_one : of_two).queue(1 + call % 700, call);
    }
    of_one.expect_exact();
    of_two.expect_exact();
    comm->barrier(soon());
  }));
}

// Whose windows and whose NCCL must not be mixed up: so of one job nothing is right for the other.
// The kernels of the jobs take turns on the GPUs.
TEST(CudaProcesses, L05_TwoJobsAtOnceOnTheSameGpus) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  const auto run_job = [](GemmAllReduceOptions options, int calls, std::int64_t first) {
    options.deadline = 20s;
    return run_gpu_ranks(2, 1, [=](const CommunicatorCallbacks& callbacks) {
      const auto comm = make_callback_communicator(callbacks);
      const auto engine = engine_on(callbacks.rank);
      const auto op = GemmAllReduce::create(*comm, engine, options);
      run_calls(*comm, *engine, *op, calls, first);
      comm->barrier(soon());
    });
  };
  comm::RankOutcomes one, two;
  {
    const std::jthread first([&] { one = run_job(exact_options(1300, 320, 128), 1000, 1); });
    const std::jthread second([&] { two = run_job(exact_options(2100, 272, 256), 700, 10'003); });
  }
  expect_all_fine(one);
  expect_all_fine(two);
}

// The base path of a layer: NCCL on the caller's stream where each rank has a GPU, also in a graph;
// else through the host, and it says why.
TEST(CudaProcesses, TheBasePathsSumIsNcclsWhereEachRankHasAGpu) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  constexpr std::int64_t kCount = 70'001;
  for (const bool share : {false, true}) {
    expect_all_fine(run_gpu_ranks(2, share ? 2 : 1, [=](const CommunicatorCallbacks& callbacks) {
      const auto comm = make_callback_communicator(callbacks);
      const int device = share ? 0 : callbacks.rank;
      check(cudaSetDevice(device), "choosing a device");
      const auto engine = engine_on(device, share ? 2 : 1);
      const auto sum = engine->make_all_reduce(*comm, soon());
      const std::string who(sum->description());
      require(who.starts_with(share ? "all-reduce of the callbacks communicator, through the host: "
                                      "ranks 0 and 1 share a GPU"
                                    : "ncclAllReduce of NCCL 2."),
              who);
      const auto memory = engine->allocate(kCount * sizeof(Bf16));
      auto* data = static_cast<Bf16*>(memory.get());
      const TestStream stream;
      const auto sum_up = [&] { sum->run(data, kCount, soon(), stream.get()); };
      std::unique_ptr<const Graph> graph;
      for (int call = 0; call < 20; ++call) {
        std::vector<Bf16> host(kCount, to_bf16(static_cast<float>(1 + comm->rank() + call)));
        engine->copy(data, host.data(), kCount * sizeof(Bf16), stream.get());
        stream.wait();
        if (call == 5 && !share) graph = std::make_unique<Graph>(stream.get(), sum_up);
        if (graph != nullptr && call % 3 != 0) {
          graph->replay();
        } else {
          sum_up();
        }
        engine->download(host.data(), data, kCount * sizeof(Bf16), stream.get());
        require(sum->poison().empty(), sum->poison());
        for (const Bf16& value : host) {
          require(to_float(value) == static_cast<float>(3 + 2 * call),
                  fmt::format("got {} in call {}", to_float(value), call));
        }
      }
    }));
  }
}

TEST(CudaProcesses, L07_WindowsGiveTheirMemoryBack) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    check(cudaSetDevice(callbacks.rank), "choosing a device");
    std::size_t before = 0, after = 0, total = 0;
    std::ptrdiff_t files = 0;
    for (int round = 0; round < 7; ++round) {
      make_window(*comm, 256u << 20, callbacks.rank, nullptr, soon());
      comm->barrier(soon());
      check(cudaMemGetInfo(round == 2 ? &before : &after, &total), "asking for memory");
      if (round == 2) files = open_files();
    }
    require(before < after + (8 << 20), fmt::format("{} bytes free, then {}", before, after));
    require(open_files() <= files, fmt::format("{} files open, then {}", files, open_files()));
  }));
}

}  // namespace
}  // namespace rowband::cuda
