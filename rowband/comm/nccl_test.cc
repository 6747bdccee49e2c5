// The NCCL communicator, and NCCL's collectives on device memory, on the GPUs there are.
#include "rowband/comm/nccl.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/comm/conformance.h"
#include "rowband/comm/gpu_test_support.h"
#include "rowband/testing/open_files.h"

namespace rowband::comm {
namespace {

using namespace std::chrono_literals;
using conformance::expect_error;
using conformance::soon;
using testing::HasSubstr;

void require(bool condition, const std::string& what) {
  if (!condition) fail(ErrorCode::kCorrupted, "{}", what);
}

void check_everything(Communicator& comm) {
  require(comm.kind() == "nccl", "kind");
  conformance::check_all_gather(comm, (5 << 20) + 3);
  conformance::check_all_reduce_exact(comm, (3 << 20) + 1);
  conformance::check_all_reduce_bits(comm, 10007);  // two ranks: one add, rounded once
  conformance::check_all_reduce_same_everywhere(comm, 70001);
  conformance::check_symmetric_memory(comm, 1 << 20);
  conformance::check_interleaving(comm, 200);
  conformance::check_count_disagreement(comm);
  conformance::check_agreement(comm);
}

TEST(CudaNccl, R12_D03_ConformsAsProcessesFoundThroughAnotherCommunicator) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    const auto comm = make_nccl_communicator(*bootstrap, callbacks.rank);
    check_everything(*comm);
    conformance::check_allocation_failure(*comm, 1);
  }));
}

TEST(CudaNccl, ConformsAsThreads) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 2, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    check_everything(*make_nccl_communicator(*bootstrap, callbacks.rank));
  }));
}

// B05: nothing of CUDA or NCCL was used before.
TEST(CudaNccl, B05_FromABareIdAsTheFirstActOfAProcess) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const NcclId own = callbacks.rank == 0 ? make_nccl_id() : NcclId();
    std::array<NcclId, 2> ids;
    callbacks.all_gather(&own, ids.data(), sizeof own, soon());
    const auto comm = make_nccl_communicator(ids[0], callbacks.rank, 2, callbacks.rank);
    conformance::check_all_reduce_exact(*comm, 5000);
    require(comm->peer_alive(1 - callbacks.rank), "the peer lives");
  }));
}

TEST(CudaNccl, FromWhatTorchrunTells) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  const int master_port = 20000 + getpid() % 10000;
  expect_all_fine(run_gpu_ranks(2, 1, [=](const CommunicatorCallbacks& callbacks) {
    const int rank = callbacks.rank;
    const auto comm = make_nccl_communicator(torchrun_rendezvous(rank, 2, "127.0.0.1", master_port),
                                             rank, soon());
    conformance::check_all_reduce_exact(*comm, 5000);
  }));
}

TEST(CudaNccl, AWorldOfOne) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(1);
  expect_all_fine(run_gpu_ranks(1, 1, [](const CommunicatorCallbacks&) {
    const auto comm = make_nccl_communicator(make_nccl_id(), 0, 1, 0);
    conformance::check_all_reduce_exact(*comm, 5000);
    conformance::check_all_gather(*comm, 5000);
  }));
}

TEST(CudaNccl, TwoRanksOnOneGpuAreRefusedInWordsOnBoth) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(1);
  for (const int per_process : {1, 2}) {
    expect_all_fine(run_gpu_ranks(2, per_process, [](const CommunicatorCallbacks& callbacks) {
      const auto bootstrap = make_callback_communicator(callbacks);
      expect_error(ErrorCode::kUnavailable, {"ranks 0 and 1 are on one GPU"},
                   [&] { make_nccl_communicator(*bootstrap, 0); });
    }));
  }
}

TEST(CudaNccl, D06_AKilledPeerIsNamedWithinSeconds) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  const auto outcomes = run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    const auto comm = make_nccl_communicator(*bootstrap, callbacks.rank);
    comm->barrier(soon());
    if (callbacks.rank == 1) raise(SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    expect_error(ErrorCode::kPeerLost, {"rank 1"}, [&] { comm->barrier(soon()); });
    require(std::chrono::steady_clock::now() - begin < 20s, "it took long");
    expect_error(ErrorCode::kPeerLost, {"rank 1"}, [&] { comm->barrier(soon()); });
    require(!comm->peer_alive(1), "the peer is known to be dead");
    // The GPU is as usable as before.
    const auto alone = make_nccl_communicator(make_nccl_id(), 0, 1, 0);
    conformance::check_all_reduce_exact(*alone, 1000);
  });
  EXPECT_EQ(outcomes[0], "");
  EXPECT_EQ(outcomes[1], "signal 9");
}

TEST(CudaNccl, D06_ASilentPeerIsADeadlineAndTheCommunicatorStaysFailed) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    const auto comm = make_nccl_communicator(*bootstrap, callbacks.rank);
    if (callbacks.rank == 0) {
      for (int again = 0; again < 2; ++again) {
        expect_error(ErrorCode::kDeadline, {"all_gather", "rank 0 waited 0.7 s"},
                     [&] { comm->barrier(Deadline::after(700ms)); });
      }
    }
    bootstrap->barrier(soon());
  }));
}

TEST(CudaNccl, D06_ARankThatNeverComesIsADeadlineAtConstruction) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(1);
  expect_all_fine(run_gpu_ranks(1, 1, [](const CommunicatorCallbacks&) {
    expect_error(ErrorCode::kDeadline, {"joining 2 ranks as rank 0", "1.5 s"},
                 [] { make_nccl_communicator(make_nccl_id(), 0, 2, 0, Deadline::after(1500ms)); });
  }));
}

// --- collectives on device memory, queued on a stream --------------------------------------------

constexpr std::int64_t kCount = 100'003;

class DeviceVector {
 public:
  explicit DeviceVector(cudaStream_t stream)
      : stream_(stream), memory_(cuda::allocate_device(kCount * sizeof(Bf16))) {
    cuda::check(cudaDeviceSynchronize(), "clearing device memory");
  }
  Bf16* data() const { return static_cast<Bf16*>(memory_.get()); }
  void fill(float value) const {
    const std::vector<Bf16> host(kCount, to_bf16(value));
    cuda::check(cudaMemcpyAsync(data(), host.data(), kCount * sizeof(Bf16), cudaMemcpyHostToDevice,
                                stream_),
                "filling");
    cuda::check(cudaStreamSynchronize(stream_), "filling");
  }
  void require_all(float value) const {
    std::vector<Bf16> host(kCount);
    cuda::check(cudaMemcpy(host.data(), data(), kCount * sizeof(Bf16), cudaMemcpyDeviceToHost),
                "reading");
    for (const Bf16& got : host) {
      require(to_float(got) == value, fmt::format("got {}, want {}", to_float(got), value));
    }
  }

 private:
  const cudaStream_t stream_;
  cuda::DeviceMemory memory_;
};

// body(comm, rank's stream) on two ranks with a GPU each.
RankOutcomes with_nccl(
    int per_process,
    const std::function<void(Communicator&, std::unique_ptr<NcclComm>, cudaStream_t)>& body) {
  return run_gpu_ranks(2, per_process, [&](const CommunicatorCallbacks& callbacks) {
    const auto comm = make_callback_communicator(callbacks);
    cuda::check(cudaSetDevice(callbacks.rank), "choosing a device");
    auto nccl = make_nccl_comm(*comm, callbacks.rank, soon());
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    body(*comm, std::move(nccl), stream);
    comm->barrier(soon());
  });
}

TEST(CudaNccl, SumsDeviceMemoryOnAStreamAndInAGraph) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  for (const int per_process : {1, 2}) {
    // Global bears least beside it, but forbids also what the other rank's thread does meanwhile.
    const auto mode =
        per_process == 1 ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal;
    expect_all_fine(
        with_nccl(per_process, [mode](Communicator& comm, auto nccl, cudaStream_t stream) {
          const DeviceVector x(stream);
          for (int call = 0; call < 20; ++call) {
            x.fill(static_cast<float>(1 + comm.rank() + call));
            nccl->all_reduce(x.data(), kCount, soon(), stream);
            nccl->wait(stream, "the sum", soon());
            x.require_all(static_cast<float>(3 + 2 * call));
          }
          cudaGraph_t graph;
          cudaGraphExec_t replay;
          cuda::check(cudaStreamBeginCapture(stream, mode), "capturing");
          nccl->all_reduce(x.data(), kCount, soon(), stream);
          // The watch looks at its event meanwhile.
          std::this_thread::sleep_for(100ms);
          cuda::check(cudaStreamEndCapture(stream, &graph), "capturing");
          cuda::check(cudaGraphInstantiate(&replay, graph, 0), "making a graph");
          for (int call = 0; call < 20; ++call) {
            x.fill(static_cast<float>(1 + comm.rank() + call));
            cuda::check(cudaGraphLaunch(replay, stream), "replaying");
            nccl->wait(stream, "the sum", soon());
            x.require_all(static_cast<float>(3 + 2 * call));
          }
          require(nccl->failure().empty(), nccl->failure());
          nccl.reset();  // and the graph outlives it
          std::this_thread::sleep_for(100ms);
          cudaGraphExecDestroy(replay);
          cudaGraphDestroy(graph);
        }));
  }
}

TEST(CudaNccl, D06_AQueuedSumEndsWithItsDeadlineWhenThePeerIsSilent) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(with_nccl(1, [](Communicator& comm, auto nccl, cudaStream_t stream) {
    const DeviceVector x(stream);
    if (comm.rank() == 0) {
      nccl->all_reduce(x.data(), kCount, Deadline::after(1s), stream);
      // A caller that only synchronises does not hang either.
      cuda::check(cudaStreamSynchronize(stream), "waiting");
      require(nccl->failure().find("waited 1 s") != std::string::npos, nccl->failure());
      expect_error(ErrorCode::kDeadline, {"waited 1 s"},
                   [&] { nccl->all_reduce(x.data(), kCount, Deadline::after(1s), stream); });
    }
  }));
}

TEST(CudaNccl, D06_AQueuedSumEndsWithItsPeer) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  const auto outcomes = with_nccl(1, [](Communicator& comm, auto nccl, cudaStream_t stream) {
    const DeviceVector x(stream);
    comm.barrier(soon());
    if (comm.rank() == 1) raise(SIGKILL);
    nccl->all_reduce(x.data(), kCount, soon(), stream);
    cuda::check(cudaStreamSynchronize(stream), "waiting");
    require(nccl->failure().find("rank 1 is gone") != std::string::npos, nccl->failure());
    nccl.reset();
    fail(ErrorCode::kIo, "as it should be");  // instead of the barrier with the dead
  });
  EXPECT_THAT(outcomes[0], HasSubstr("as it should be"));
  EXPECT_EQ(outcomes[1], "signal 9");
}

TEST(CudaNccl, APeerThatEndsWhenItHasDoneItsPartIsNoError) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  const auto outcomes = with_nccl(1, [](Communicator& comm, auto nccl, cudaStream_t stream) {
    const DeviceVector x(stream);
    x.fill(1.0f);
    nccl->all_reduce(x.data(), kCount, soon(), stream);
    nccl->wait(stream, "the sum", soon());
    if (comm.rank() == 1) raise(SIGKILL);
    std::this_thread::sleep_for(2500ms);  // longer than the watch waits after a death
    require(nccl->failure().empty(), nccl->failure());
    x.require_all(2.0f);
    fail(ErrorCode::kIo, "as it should be");  // instead of the barrier with the dead
  });
  EXPECT_THAT(outcomes[0], HasSubstr("as it should be"));
}

TEST(CudaNccl, L07_CommunicatorsGiveTheirMemoryBack) {
  ROWBAND_NEEDS_GPUS_OF_CHILDREN(2);
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    std::size_t before = 0, after = 0, total = 0;
    std::ptrdiff_t files = 0;
    for (int round = 0; round < 8; ++round) {
      make_nccl_communicator(*bootstrap, callbacks.rank)->barrier(soon());
      bootstrap->barrier(soon());
      cuda::check(cudaSetDevice(callbacks.rank), "choosing a device");
      cuda::check(cudaMemGetInfo(round == 2 ? &before : &after, &total), "asking for memory");
      if (round == 2) files = open_files();
    }
    require(before < after + (16 << 20), fmt::format("{} bytes free, then {}", before, after));
    require(open_files() <= files, fmt::format("{} files open, then {}", files, open_files()));
  }));
}

TEST(CudaNccl, WithoutAGpuItSaysSo) {
  if (gpus_of_a_child() > 0) GTEST_SKIP() << "this machine has a GPU";
  expect_all_fine(run_gpu_ranks(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto bootstrap = make_callback_communicator(callbacks);
    expect_error(ErrorCode::kUnavailable, {"rank 0: NCCL failed", "rank 1: NCCL failed"},
                 [&] { make_nccl_communicator(*bootstrap, 0); });
  }));
}

}  // namespace
}  // namespace rowband::comm
