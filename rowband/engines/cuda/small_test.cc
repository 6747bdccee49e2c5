// Small calls of every kind, for compute-sanitizer: scripts/test-gpu --sanitize. One rank per GPU,
// since the sanitizer runs the kernels of one GPU one after the other.
#include <gtest/gtest.h>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/graph_support.h"
#include "rowband/engines/cuda/random_calls.h"

namespace rowband::cuda {
namespace {

void run_small_calls(int world) {
  std::vector<GemmAllReduceOptions> variants;
  for (std::int64_t cols : {144, 192}) {  // of 192, stores to a peer are packed
    for (const auto& options : served_variants(exact_options(600, cols, 384), world)) {
      if (cols == 192 && (world == 1 || options.transport != Transport::kDirect)) continue;
      for (std::int64_t height : kHeights) variants.push_back(in_tiles_of(height, options));
    }
  }
  for (const auto& options : variants) {
    SCOPED_TRACE(variant_name(options));
    with_gpu_ops(
        world, world, options,
        [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
          const TestStream stream(comm);
          const RandomOperands operands(engine, op.spec(), 3, stream.get());
          const auto bias = device_array<Bf16>(engine, op.spec().cols);
          const ExactCalls calls(comm, engine, op);
          std::int64_t call = 0;
          for (std::int64_t rows : {600, 0, 1, 257}) calls.queue(rows, ++call);
          calls.expect_exact();
          op.run(operands.x(300), operands.w(), bias.get(), nullptr, nullptr, stream.get());
          stream.wait();
          EXPECT_EQ(op.poison(), "");
        },
        std::chrono::seconds(60));
  }
}

// A captured call, a refused one, and the base path's GEMM with its bias, of zeros.
void run_other_small_calls(int world) {
  with_gpu_ops(
      world, world, exact_options(300, 144, 256),
      [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const auto bias = device_array<Bf16>(engine, 144),
                   out = device_array<Bf16>(engine, 70 * 144);
        const DeviceFindings found(engine);
        const ExactCalls calls(comm, engine, op);
        Output y;
        const Graph graph(calls.stream(), [&] { y = calls.run(130); });
        for (int call = 1; call < 4; ++call) {
          calls.fill(130, call);
          graph.replay();
          calls.check(y, call);
        }
        calls.expect_exact();
        EXPECT_THROW(op.run({}, calls.w(), nullptr, nullptr, nullptr, calls.stream()), Error);
        calls.queue(300, 4);
        const ActivationView x = calls.x(70);
        fill_exact(const_cast<E4m3*>(x.codes), 70, 256, 0, 5, calls.stream());
        engine.gemm(x, calls.w(), bias.get(), out.get(), nullptr, calls.stream());
        engine.add_bias(out.get(), 70, 144, bias.get(), calls.stream());
        check_exact(out.get(), 70, 144, 256, 1, 5, found.get(), calls.stream());
        calls.expect_exact();
        found.expect_none("a GEMM", calls.stream());
      },
      std::chrono::seconds(60));
}

TEST(CudaSmall, CallsOfOneRank) {
  ROWBAND_NEEDS_GPUS(1);
  run_small_calls(1);
  run_other_small_calls(1);
}

TEST(CudaSmall, CallsOfARankPerGpu) {
  ROWBAND_NEEDS_GPUS(2);
  run_small_calls(2);
  run_other_small_calls(2);
}

TEST(CudaSmall, TheQuantiser) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  const auto x = device_array<Bf16>(*engine, 33 * 515);
  const auto codes = device_array<E4m3>(*engine, 33 * 512);
  const auto scales = device_array<float>(*engine, 33 * 4);
  engine->quantize(x.get(), 33, 512, 515, ScaleFormat::kFp32, codes.get(), scales.get());
  std::vector<float> host(33 * 4);
  engine->download(host.data(), scales.get(), host.size() * sizeof(float), nullptr);
  for (float scale : host) EXPECT_EQ(scale, 1.0f);
}

}  // namespace
}  // namespace rowband::cuda
