// Streams, captured graphs, and memory that no plain allocation gave. Skipped, with a message,
// without a GPU.
#include <gmock/gmock.h>

#include <functional>
#include <random>
#include <thread>

#include "rowband/engines/cuda/captured_calls.h"

namespace rowband::cuda {
namespace {

using namespace std::chrono_literals;

// On every wire and transport that is served, over both GPUs where there are two, and with ranks
// that share one.
void with_all_ops(const GemmAllReduceOptions& base,
                  const std::function<void(Communicator&, Engine&, GemmAllReduce&)>& body) {
  for (const auto& [world, devices] : {std::pair{2, gpus()}, {4, gpus()}}) {
    for (const auto& options : served_variants(base, world)) {
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
      with_gpu_ops(world, devices, options, body);
    }
  }
}

TEST(CudaGraphs, G01_EachReplayReadsItsOwnData) {
  ROWBAND_NEEDS_GPUS(1);
  with_all_ops(exact_options(700, 320, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls calls(comm, engine, op);
                 const CapturedCalls captured(calls, {700});
                 for (int replay = 1; replay <= 100; ++replay) {
                   if (comm.rank() == 1 && replay % 4 == 0) std::this_thread::sleep_for(500us);
                   calls.fill(700, replay);
                   captured.replay();
                   calls.check(captured.result(), replay);
                 }
                 calls.expect_exact();
               });
}

TEST(CudaGraphs, G03_G04_GraphsOfSeveralShapesReplayBesideEagerCalls) {
  ROWBAND_NEEDS_GPUS(1);
  with_all_ops(exact_options(4096, 320, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls calls(comm, engine, op);
                 std::vector<std::unique_ptr<CapturedCalls>> graphs;
                 for (std::int64_t rows : {8, 64, 512, 4096}) {
                   graphs.push_back(std::make_unique<CapturedCalls>(calls, std::vector{rows}));
                 }
                 std::minstd_rand same_on_all_ranks(3);
                 for (int call = 1; call <= 500; ++call) {
                   const auto& chosen = *graphs[same_on_all_ranks() % graphs.size()];
                   const std::int64_t rows = chosen.result().rows;
                   if (call % 64 == 0) calls.expect_exact();  // no stream is filled
                   if (same_on_all_ranks() % 4 == 0) {
                     calls.queue(rows, call);
                     continue;
                   }
                   calls.fill(rows, call);
                   chosen.replay();
                   calls.check(chosen.result(), call);
                 }
                 calls.expect_exact();
               });
}

// Kernel after kernel with nothing between, eager and in a graph, each with operands of its own.
TEST(CudaGraphs, G04_CallsThatFollowOneAnotherAtOnce) {
  ROWBAND_NEEDS_GPUS(1);
  auto options = exact_options(700, 320, 128);
  options.slots = 4;
  with_all_ops(options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
    const auto stream = std::make_shared<TestStream>(comm);
    const std::vector<std::int64_t> rows = {700, 8, 64, 700};
    std::vector<std::unique_ptr<ExactCalls>> calls;  // the captured ones', then the eager ones'
    for (int i = 0; i < 8; ++i) {
      calls.push_back(std::make_unique<ExactCalls>(comm, engine, op, stream));
    }
    std::vector<Output> captured;
    const Graph graph(stream->get(), [&] {
      for (int i = 0; i < 4; ++i) captured.push_back(calls[i]->run(rows[i]));
    });
    for (int round = 0; round < 50; ++round) {
      if (round % 10 == 0) stream->wait();  // no stream is filled
      for (int i = 0; i < 8; ++i) calls[i]->fill(rows[i % 4], 8 * round + i);
      graph.replay();
      for (int i = 0; i < 4; ++i) calls[i]->check(captured[i], 8 * round + i);
      std::vector<Output> eager;  // in the same slots
      for (int i = 4; i < 8; ++i) eager.push_back(calls[i]->run(rows[i - 4]));
      for (int i = 4; i < 8; ++i) calls[i]->check(eager[i - 4], 8 * round + i);
    }
    for (const auto& each : calls) each->expect_exact();
  });
}

TEST(CudaGraphs, G05_CallsOnTwoStreamsFollowOneAnother) {
  ROWBAND_NEEDS_GPUS(1);
  with_all_ops(exact_options(700, 320, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls one(comm, engine, op), other(comm, engine, op);
                 for (int call = 1; call <= 400; call += 2) {
                   one.queue(call % 3 == 0 ? 700 : 30, call);
                   other.queue(call % 5 == 0 ? 700 : 40, call + 1);
                 }
                 one.expect_exact();
                 other.expect_exact();
               });
}

// The call's operands come from another stream, eager and captured.
TEST(CudaGraphs, G05_ACallBehindAForkAndAJoin) {
  ROWBAND_NEEDS_GPUS(1);
  with_all_ops(exact_options(700, 320, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const ExactCalls calls(comm, engine, op);
                 const TestStream side(comm);
                 const Event fork = make_event(), join = make_event();
                 const cudaStream_t main = calls.stream();
                 const auto queue = [&] {
                   calls.fill(700, 2);  // not what the call is to read
                   check(cudaEventRecord(fork.get(), main), "forking");
                   check(cudaStreamWaitEvent(side.get(), fork.get()), "forking");
                   calls.fill(700, 1, side.get());
                   check(cudaEventRecord(join.get(), side.get()), "joining");
                   check(cudaStreamWaitEvent(main, join.get()), "joining");
                   calls.check(calls.run(700), 1);
                 };
                 const Graph graph(main, queue);
                 for (int round = 0; round < 50; ++round) {
                   if (round % 10 == 0) calls.expect_exact();  // no stream is filled
                   graph.replay();
                   queue();
                 }
                 calls.expect_exact();
               });
}

TEST(CudaGraphs, G07_OperandsInMappedMemoryEagerAndCaptured) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(2, gpus(), exact_options(700, 320, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const int device = comm.rank() % gpus();
                 const MappedMemory codes(device, 700 * 128), out(device, 700 * 320 * sizeof(Bf16));
                 const ExactCalls calls(comm, engine, op);
                 ActivationView x = calls.x(700);
                 x.codes = codes.as<E4m3>();
                 const auto queue = [&] {
                   return op.run(x, calls.w(), nullptr, out.as<Bf16>(), nullptr, calls.stream());
                 };
                 fill_exact(codes.as<E4m3>(), 700, 128, comm.rank(), 1, calls.stream());
                 calls.check(queue(), 1);
                 Output y;
                 const Graph graph(calls.stream(), [&] { y = queue(); });
                 for (int call = 2; call < 10; ++call) {
                   fill_exact(codes.as<E4m3>(), 700, 128, comm.rank(), call, calls.stream());
                   graph.replay();
                   calls.check(y, call);
                 }
                 calls.expect_exact();
                 comm.barrier(Deadline::after(60s));  // unmapping may wait for the device
               });
}

}  // namespace
}  // namespace rowband::cuda
