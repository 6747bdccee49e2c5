// Shapes on the GPUs: every world, ragged, empty and huge M, tails of N, every number of K blocks,
// strides; exact to the bit. Skipped, with a message, without a GPU.
#include <gmock/gmock.h>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/random_calls.h"
#include "rowband/testing/operands.h"

namespace rowband::cuda {
namespace {

using testing::HasSubstr;

GemmAllReduceOptions untested(GemmAllReduceOptions options) {
  options.self_test = false;
  return options;
}

// Exact calls with these M, one after the other.
void expect_exact(int world, int devices, const GemmAllReduceOptions& options,
                  const std::vector<std::int64_t>& rows) {
  SCOPED_TRACE("W=" + std::to_string(world) + " on " + std::to_string(devices) + " GPU(s), " +
               variant_name(options));
  with_gpu_ops(world, devices, options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
    const ExactCalls calls(comm, engine, op);
    std::int64_t call = 0;
    for (std::int64_t m : rows) {
      EXPECT_TRUE(op.supports(m)) << m;
      const Output y = calls.queue(m, ++call);
      EXPECT_EQ(y.rows, m);
      EXPECT_EQ(y.cols, options.cols);
    }
    calls.expect_exact();
  });
}

TEST(CudaShapes, W01_N03_M01_M05_EveryWorldAndRaggedM) {
  ROWBAND_NEEDS_GPUS(1);
  for (int devices = 1; devices <= gpus(); ++devices) {
    for (int world = 1; world <= 8; ++world) {
      const std::int64_t cols = world % 2 == 0 ? 320 : 272;  // with packed partials, without
      for (const auto& options : served_variants(exact_options(2100, cols, 128), world)) {
        for (std::int64_t height : kHeights) {
          expect_exact(world, devices, in_tiles_of(height, options),
                       {2100, 1, 33, 0, 65, 129, 193, 256, 257, 1024, 0, 2100});
        }
      }
    }
  }
}

// The fp8 wire where the products are nearly as long as the transfers: of a depth at which this
// many ranks on these GPUs are so planned.
TEST(CudaShapes, OnlyABandsFirstChunksPacked) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3, 4, 8}) {
    const auto engine = engine_for(0, world, gpus());
    GemmAllReduceOptions options = exact_options(2100, 320, 2048);
    options.wire = Wire::kFp8;
    const auto partly = [&] {
      const PlanSpec spec = GemmAllReduce::plan_spec(*engine, options, world);
      return spec.packs_partials() && spec.packed_chunks < spec.chunks;
    };
    for (std::int64_t depth : {2048, 1536, 1280, 1024, 768, 640, 512, 384, 256}) {
      options.depth = depth;
      if (partly()) break;
    }
    ASSERT_TRUE(partly()) << "W=" << world;
    for (std::int64_t height : kHeights) {
      expect_exact(world, gpus(), in_tiles_of(height, options),
                   {2100, 1, 33, 65, 129, 193, 1024, 2100, 1300});
    }
  }
}

TEST(CudaShapes, W01_RowsThatDivideByEveryWorld) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world = 1; world <= 8; ++world) {
    expect_exact(world, gpus(), untested(exact_options(107520, 1024, 256)), {3360, 107520, 3360});
  }
}

TEST(CudaShapes, W03_TailsOfRowsAndColumns) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [world, cols] : {std::pair{8, 128}, {2, 128}, {8, 8}, {3, 272}, {5, 1000}}) {
    for (const auto& options : served_variants(exact_options(16, cols, 128), world)) {
      expect_exact(world, gpus(), options, {1, 3, 7, 9, 16});
    }
  }
}

TEST(CudaShapes, M08_K01_K03_GridOfShapes) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 4, 8}) {
    for (std::int64_t cols : {128, 384, 1024, 7168}) {
      for (std::int64_t depth : {128, 256, 384, 1152, 2048}) {
        expect_exact(world, gpus(), untested(exact_options(4096, cols, depth)),
                     {128, 256, 384, 512, 1024, 4096});
      }
    }
  }
}

// Codes and scales that differ along every dimension: a permuted depth block, or a scale of another
// row or block, is no small error.
TEST(CudaShapes, M08_GridOfShapesOfRandomOperandsAgainstTheFloat64Reference) {
  ROWBAND_NEEDS_GPUS(1);
  struct Shape {
    int world;
    std::int64_t cols, depth;
  };
  for (const auto& [world, cols, depth] : std::initializer_list<Shape>{{2, 128, 128},
                                                                       {2, 384, 256},
                                                                       {2, 320, 4096},
                                                                       {3, 1008, 640},
                                                                       {4, 1024, 384},
                                                                       {4, 7168, 1152},
                                                                       {8, 272, 2048}}) {
    for (const auto& options : served_variants(untested(exact_options(4096, cols, depth)), world)) {
      OperandsOfAllRanks on_host(world);
      std::vector<std::int64_t> rows;  // that are looked at, of all calls
      std::vector<Bf16> got;
      with_gpu_ops(
          world, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const TestStream stream(comm);
            const RandomOperands operands(engine, op.spec(), 30 + 4 * comm.rank(), stream.get());
            const EqualOnAllRanks equal(comm, engine);
            on_host.fetch(comm.rank(), engine, operands, stream);
            comm.barrier(Deadline::after(std::chrono::seconds(60)));
            for (std::int64_t m : {1, 129, 300, 1024, 4096}) {
              const Output y =
                  op.run(operands.x(m), operands.w(), nullptr, nullptr, nullptr, stream.get());
              equal.expect(y, stream);
              if (comm.rank() != 0) continue;
              std::vector<std::int64_t> of_call(8);
              for (int i = 0; i < 8; ++i) of_call[i] = i * (m - 1) / 7;
              append_rows(got, engine, y, of_call, stream);
              rows.insert(rows.end(), of_call.begin(), of_call.end());
            }
          });
      EXPECT_LE(relative_l2(got, on_host.reference(rows)), error_limit(options))
          << "W=" << world << ", N=" << cols << ", K=" << depth << ", " << variant_name(options);
    }
  }
}

TEST(CudaShapes, K03_EveryNumberOfDepthBlocks) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  for (std::int64_t depth = 128; depth <= 8192; depth += depth < 2304 ? 128 : 1408) {
    const OnDevice<ConstantActivations> x(*engine, ConstantActivations(300, depth, 1.0f));
    const OnDevice<ConstantWeight> w(*engine, ConstantWeight(272, depth, 2.0f));
    const auto out = device_array<Bf16>(*engine, 300 * 272);
    engine->gemm(x.view(), w.view(), nullptr, out.get(), nullptr);
    std::vector<Bf16> host(300 * 272);
    engine->download(host.data(), out.get(), host.size() * sizeof(Bf16), nullptr);
    for (Bf16 value : host) {
      ASSERT_EQ(value, to_bf16(2.0f * static_cast<float>(depth))) << "K=" << depth;
    }
  }
}

// M * N passes 2^31 between the two.
TEST(CudaShapes, M03_MoreElementsThan31BitsCount) {
  ROWBAND_NEEDS_GPUS(1);
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  if (free < std::size_t{32} << 30) GTEST_SKIP() << "needs 32 GiB of free GPU memory";
  expect_exact(2, gpus(), untested(exact_options(299594, 7168, 128)), {299593, 299594});
}

TEST(CudaShapes, M05_M07_OnlyTheRowsOfTheCallAreWritten) {
  ROWBAND_NEEDS_GPUS(1);
  std::vector<GemmAllReduceOptions> variants;
  for (const auto& options : served_variants(exact_options(512, 144, 128), 2)) {
    for (std::int64_t height : kHeights) variants.push_back(in_tiles_of(height, options));
  }
  for (auto& options : variants) {
    options.slots = 1;
    SCOPED_TRACE(variant_name(options));
    with_gpu_ops(2, gpus(), options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      const DeviceFindings found(engine);
      constexpr std::int64_t kElements = 512 * 144 + 64;
      const auto out = device_array<Bf16>(engine, kElements);
      const auto before = device_array<Bf16>(engine, kElements);
      const ExactCalls calls(comm, engine, op);
      std::int64_t call = 0;
      for (std::int64_t rows : {300, 1, 33, 65, 129}) {
        // In the window's slot, the rows of the call before stay.
        const Output whole = calls.queue(512, ++call);
        engine.copy(before.get(), whole.data, bytes_of(whole), calls.stream());
        const Output y = calls.queue(rows, ++call);
        ASSERT_EQ(y.data, whole.data);
        check_equal(y.data + rows * 144, before.get() + rows * 144,
                    static_cast<std::size_t>(512 - rows) * 144 * sizeof(Bf16), found.get(),
                    calls.stream());
        // In the caller's buffer, everything behind them.
        ASSERT_EQ(cudaMemsetAsync(out.get(), 0x5A, kElements * sizeof(Bf16), calls.stream()),
                  cudaSuccess);
        calls.queue(rows, ++call, out.get());
        check_bytes(out.get() + rows * 144, 0x5A,
                    static_cast<std::size_t>(kElements - rows * 144) * sizeof(Bf16), found.get(),
                    calls.stream());
      }
      calls.expect_exact();
      found.expect_none("rows behind M", calls.stream());
    });
  }
}

// Memory of one value, beside which the next allocation may lie.
class Guard {
 public:
  Guard() : memory_(allocate_device(kBytes)) {
    check(cudaMemset(memory_.get(), 0x5A, kBytes), "a guard");
    check(cudaDeviceSynchronize(), "a guard");
  }
  void check_untouched(const DeviceFindings& found, cudaStream_t stream) const {
    check_bytes(memory_.get(), 0x5A, kBytes, found.get(), stream);
  }

 private:
  static constexpr std::size_t kBytes = 1 << 16;
  const DeviceMemory memory_;
};

// Windows, operands and outputs of just so many rows.
TEST(CudaShapes, M09_FewRowsLeaveTheirNeighboursAlone) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& variant : served_variants(untested(exact_options(31, 128, 128)), 2)) {
    SCOPED_TRACE(variant_name(variant));
    run_ranks(2, [&](Communicator& comm) {
      check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
      load_test_kernels();
      const auto engine = engine_for(comm.rank(), 2, gpus());
      const auto stream = std::make_shared<TestStream>(comm);
      const DeviceFindings found(*engine);
      constexpr std::int64_t kGuard = 4096, kRow = 128 * sizeof(Bf16);
      GemmAllReduceOptions options = variant;
      options.slots = 3;
      options.deadline = std::chrono::seconds(5);
      for (std::int64_t rows = 1; rows < 32; ++rows) {
        options.max_rows = rows;
        const Guard before;
        const auto op = GemmAllReduce::create(comm, engine, options);
        const Guard behind;
        const auto guarded = device_array<std::byte>(*engine, 2 * kGuard + rows * kRow);
        const ExactCalls calls(comm, *engine, *op, stream);
        check(cudaMemsetAsync(guarded.get(), 0x5A, 2 * kGuard + rows * kRow, stream->get()),
              "guarding an output");
        // The results of the two calls before, in the slots beside this one's.
        const Output first = calls.queue(rows, 3 * rows), second = calls.queue(rows, 3 * rows + 1);
        calls.queue(rows, 3 * rows + 2, reinterpret_cast<Bf16*>(guarded.get() + kGuard));
        calls.check(first, 3 * rows);
        calls.check(second, 3 * rows + 1);
        check_bytes(guarded.get(), 0x5A, kGuard, found.get(), stream->get());
        check_bytes(guarded.get() + kGuard + rows * kRow, 0x5A, kGuard, found.get(), stream->get());
        before.check_untouched(found, stream->get());
        behind.check_untouched(found, stream->get());
        calls.expect_exact();
        found.expect_none("guard bytes, M=" + std::to_string(rows), stream->get());
        comm.barrier(Deadline::after(std::chrono::seconds(60)));  // freeing waits for the device
      }
    });
  }
}

TEST(CudaShapes, M10_LargeCallsEqualTheUnfusedPathEveryTime) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& [rows, depth] : {std::pair{16384, 640}, {32768, 2176}}) {
    for (const auto& options : served_variants(untested(exact_options(rows, 7168, depth)), 2)) {
      SCOPED_TRACE("M=" + std::to_string(rows) + ", " + variant_name(options));
      with_gpu_ops(2, gpus(), options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        CallsInTurn calls(comm, engine, op, 10);
        for (int repeat = 0; repeat < 21; ++repeat) calls.queue(op.spec().max_rows);
        calls.expect_equal();
      });
    }
  }
}

TEST(CudaShapes, S08_S09_StridedOperandsGiveTheBitsOfDenseOnes) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr std::int64_t kRows = 700, kCols = 272, kDepth = 256, kWide = 640;
  with_gpu_ops(2, gpus(), exact_options(kRows, kCols, kDepth),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const TestStream stream(comm);
                 const RandomOperands wide(engine, op.spec(), 5 + comm.rank(), stream.get(), kWide);
                 ActivationView x = wide.x();
                 WeightView w = wide.w();
                 x.codes += 64;  // columns 64..64+K of wider rows
                 w.codes += 128;
                 const auto dense_x = device_array<E4m3>(engine, kRows * kDepth);
                 const auto dense_w = device_array<E4m3>(engine, kCols * kDepth);
                 const auto turned = device_array<float>(engine, 2 * kRows);
                 const DeviceFindings found(engine);
                 ASSERT_EQ(cudaMemcpy2DAsync(dense_x.get(), kDepth, x.codes, kWide, kDepth, kRows,
                                             cudaMemcpyDeviceToDevice, stream.get()),
                           cudaSuccess);
                 ASSERT_EQ(cudaMemcpy2DAsync(dense_w.get(), kDepth, w.codes, kWide, kDepth, kCols,
                                             cudaMemcpyDeviceToDevice, stream.get()),
                           cudaSuccess);
                 stream.wait();
                 comm.barrier(Deadline::after(std::chrono::seconds(20)));
                 const Output strided = op.run(x, w, nullptr, nullptr, nullptr, stream.get());
                 // Scales block by block, as some quantisers lay them.
                 for (int block = 0; block < 2; ++block) {
                   ASSERT_EQ(cudaMemcpy2DAsync(turned.get() + block * kRows, 4, x.scales + block, 8,
                                               4, kRows, cudaMemcpyDeviceToDevice, stream.get()),
                             cudaSuccess);
                 }
                 stream.wait();
                 const Output dense =
                     op.run({dense_x.get(), kRows, kDepth, kDepth, turned.get(), 1, kRows},
                            {dense_w.get(), kCols, kDepth, kDepth, w.scales, w.scale_row_stride, 1},
                            nullptr, nullptr, nullptr, stream.get());
                 check_equal(strided.data, dense.data, bytes_of(dense), found.get(), stream.get());
                 found.expect_none("strided against dense", stream.get());
                 EXPECT_EQ(op.poison(), "");

                 // Rows that the GPU cannot step over are refused, on both ranks alike.
                 x.row_stride = kWide + 8;
                 x.rows = 10;
                 EXPECT_THAT(op.why_not(x, w), HasSubstr("648 bytes apart"));
                 EXPECT_THROW(op.run(x, w), Error);
                 EXPECT_EQ(op.poison(), "");
               });
}

TEST(CudaShapes, S10_MisalignedOperandsAreRefusedAndTheContextLivesOn) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(2, gpus(), exact_options(600, 272, 128),
               [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                 const auto out = device_array<Bf16>(engine, 600 * 272 + 1);
                 const auto bias = device_array<Bf16>(engine, 265);
                 const ExactCalls calls(comm, engine, op);
                 ActivationView x = calls.x(500);
                 x.codes += 2;
                 WeightView w = calls.w();
                 w.codes += 8;
                 EXPECT_THAT(op.why_not(x, calls.w()), HasSubstr("activation codes"));
                 EXPECT_THAT(op.why_not(calls.x(500), w), HasSubstr("weight codes"));
                 EXPECT_THAT(op.why_not(calls.x(500), calls.w(), nullptr, bias.get() + 1),
                             HasSubstr("bias"));
                 EXPECT_THROW(op.run(x, calls.w()), Error);
                 EXPECT_THROW(op.run(calls.x(500), calls.w(), bias.get() + 1), Error);
                 EXPECT_THROW(
                     engine.gemm(calls.x(500), calls.w(), bias.get() + 1, out.get(), nullptr),
                     Error);
                 EXPECT_THROW(engine.gemm(x, calls.w(), nullptr, out.get(), nullptr), Error);
                 // An output may lie anywhere: it is copied there.
                 calls.queue(600, 1, out.get() + 1);
                 calls.expect_exact();
               });
}

}  // namespace
}  // namespace rowband::cuda
