// What the numbers are: accuracy against the float64 reference, the unfused path's bits, bits that
// depend on nothing but the row, bias, NaN. Skipped, with a message, without a GPU.
#include <gmock/gmock.h>

#include <cmath>
#include <mutex>
#include <numeric>
#include <random>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/random_calls.h"
#include "rowband/testing/random_group.h"

namespace rowband::cuda {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// The results of all ranks and repetitions for the first m rows of a group.
std::vector<std::vector<Bf16>> run_group(const RandomGroup& group,
                                         const GemmAllReduceOptions& options, std::int64_t m,
                                         int devices, int repeats) {
  std::vector<std::vector<Bf16>> all;
  std::mutex mutex;
  with_gpu_ops(
      group.world, devices, options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const OnDevice<RandomActivations> x(engine, group.xs[comm.rank()]);
        const OnDevice<RandomWeight> w(engine, group.ws[comm.rank()]);
        const auto bias = engine.upload(group.bias.data(), group.bias.size() * 2);
        ActivationView view = x.view();
        view.rows = m;
        for (int i = 0; i < repeats; ++i) {
          auto y = fetch(engine, op, op.run(view, w.view(), static_cast<const Bf16*>(bias.get())));
          const std::lock_guard lock(mutex);
          all.push_back(std::move(y));
        }
      });
  return all;
}

TEST(CudaNumbers, N01_N08_AccurateAndEqualOnAllRanksAndRepetitions) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {1, 2, 3, 8}) {
    const RandomGroup group(world, 1100, 576, 512, 7 * world);
    const auto want = group.reference(group.bias.data(), 8);
    for (const auto& options : served_variants(exact_options(1100, 576, 512), world)) {
      for (int devices = 1; devices <= gpus(); ++devices) {
        if (!has_the_gpus(options, world, devices)) continue;
        const auto results = run_group(group, options, 1100, devices, 5);
        EXPECT_LE(relative_l2(results[0], want), error_limit(options))
            << "W=" << world << ", " << variant_name(options);
        for (const auto& result : results) ASSERT_EQ(result, results[0]);
      }
    }
  }
}

TEST(CudaNumbers, K01_FewDepthBlocksAreAccurate) {
  ROWBAND_NEEDS_GPUS(1);
  for (std::int64_t depth : {128, 256, 384}) {
    const RandomGroup group(2, 512, 1024, depth, 31);
    const auto results = run_group(group, exact_options(512, 1024, depth), 512, gpus(), 1);
    const auto want = group.reference(group.bias.data(), 8);
    for (const auto& result : results) EXPECT_LE(relative_l2(result, want), 3e-3) << depth;
  }
}

TEST(CudaNumbers, N08_AccurateAtFullSize) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr std::int64_t kRows = 16384, kCols = 7168, kDepth = 2048;
  std::vector<std::int64_t> wanted(24);  // rows, of every band
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = static_cast<std::int64_t>(i) * 709;
  for (int world : {2, 4}) {
    for (const auto& options : served_variants(exact_options(kRows, kCols, kDepth), world)) {
      OperandsOfAllRanks on_host(world);
      std::vector<Bf16> got;
      with_gpu_ops(
          world, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const TestStream stream(comm);
            const RandomOperands operands(engine, op.spec(), 50 + 4 * comm.rank(), stream.get());
            const EqualOnAllRanks equal(comm, engine);
            on_host.fetch(comm.rank(), engine, operands, stream);
            comm.barrier(Deadline::after(std::chrono::seconds(60)));
            const Output y =
                op.run(operands.x(), operands.w(), nullptr, nullptr, nullptr, stream.get());
            equal.expect(y, stream);
            if (comm.rank() == 0) append_rows(got, engine, y, wanted, stream);
          });
      EXPECT_LE(relative_l2(got, on_host.reference(wanted)), error_limit(options))
          << "W=" << world << ", " << variant_name(options);
    }
  }
}

// Collective: tells `found` of what differs between a fused call and the unfused path.
void check_against(const UnfusedPath& unfused, const ActivationView& x, const WeightView& w,
                   Communicator& comm, GemmAllReduce& op, const TestStream& stream,
                   const DeviceFindings& found) {
  const Bf16* want = unfused.run(x, w, stream);
  const Output y = op.run(x, w, nullptr, nullptr, nullptr, stream.get());
  check_equal(y.data, want, bytes_of(y), found.get(), stream.get());
  stream.wait();
  comm.barrier(Deadline::after(std::chrono::seconds(60)));
}

// Every exponent as a warp's largest: values that lie close together, that just do not, with zeros
// and subnormals among them, and of any bits.
TEST(CudaNumbers, PackedValuesComeBackToTheBit) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr std::int64_t kValues = 1024;
  std::mt19937_64 random(11);
  std::vector<std::uint16_t> values;
  const auto add_warp = [&](auto exponent) {
    for (std::int64_t i = 0; i < kValues; ++i) {
      values.push_back(static_cast<std::uint16_t>((random() & 0x807F) | exponent(i) << 7));
    }
  };
  std::int64_t packed = 0;
  for (int top = 0; top <= 255; ++top) {
    const int lowest = std::max(top - 14, 0);  // that fits
    const auto any = [&](std::int64_t i) {
      return i == top ? top : lowest + static_cast<int>(random() % (top - lowest + 1));
    };
    add_warp(any);
    add_warp([&](std::int64_t i) { return i % 7 == 3 ? 0 : any(i); });
    packed += 2;
    const auto lone = static_cast<std::int64_t>(random() % kValues);
    if (lone == top) continue;
    const int below = static_cast<int>(random() % (lowest + 1));
    add_warp([&](std::int64_t i) { return i == lone ? below : any(i); });
    add_warp([&](std::int64_t i) {
      return i == lone ? below : i % 5 == 0 && i != top ? 0 : any(i);
    });
    packed += below == 0 || below == lowest || top <= 15 ? 2 : 0;
  }
  add_warp([&](std::int64_t) { return static_cast<int>(random() & 0xFF); });

  const auto engine = engine_for(0, 1, 1);
  const DeviceFindings findings(*engine);
  const auto count = device_array<unsigned long long>(*engine, 1);
  const auto pairs = engine->upload(values.data(), values.size() * 2);
  check_packing(static_cast<const std::uint32_t*>(pairs.get()), std::ssize(values) / kValues,
                findings.get(), count.get(), nullptr);
  unsigned long long counted = 0;
  engine->download(&counted, count.get(), sizeof counted, nullptr);
  findings.expect_none("packed values", nullptr);
  EXPECT_EQ(counted, packed);
}

// Partials that are packed beside others that are not, and rows of zeros.
TEST(CudaNumbers, PartialsOfAnyExponentsGiveTheUnfusedPathsBits) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3, 4, 8}) {
    for (const auto& options : served_variants(exact_options(1100, 576, 128), world)) {
      if (options.wire != Wire::kBf16) continue;
      SCOPED_TRACE("W=" + std::to_string(world) + ", " + variant_name(options));
      with_gpu_ops(
          world, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            EXPECT_EQ(op.spec().packs_partials(), options.transport == Transport::kDirect);
            const TestStream stream(comm);
            const RandomOperands operands(engine, op.spec(), 60 + 4 * comm.rank(), stream.get());
            // By blocks of 64 rows: as they are; one row far below the others; one of zeros; every
            // row for itself.
            std::vector<float> scales(1100);
            for (int row = 0; row < 1100; ++row) {
              const int block = (row / 64 + comm.rank()) % 4, shift = (row * 7 + comm.rank()) % 60;
              const bool lone = row % 16 == 5;
              scales[row] = block == 1 && lone   ? 0x1p-30f
                            : block == 2 && lone ? 0.0f
                            : block == 3         ? std::ldexp(1.0f, shift - 30)
                                                 : 1.0f;
            }
            const auto on_device = engine.upload(scales.data(), scales.size() * sizeof(float));
            ActivationView x = operands.x();
            x.scales = static_cast<const float*>(on_device.get());
            const UnfusedPath unfused(comm, engine, 1100 * 576);
            const DeviceFindings found(engine);
            for (std::int64_t rows : {1100, 64, 640, 129}) {
              x.rows = rows;
              check_against(unfused, x, operands.w(), comm, op, stream, found);
            }
            found.expect_none("against the unfused path", stream.get());
            EXPECT_EQ(op.poison(), "");
          });
    }
  }
}

// Rows of full precision: partials are rounded to bf16 and added in rank order on either path.
TEST(CudaNumbers, TheFusedPathHasTheBitsOfTheUnfusedOne) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3, 4, 8}) {
    std::vector<GemmAllReduceOptions> variants;
    for (std::int64_t cols : {1040, 1088}) {
      for (const auto& options : served_variants(exact_options(3000, cols, 640), world)) {
        if (options.wire != Wire::kBf16) continue;
        for (std::int64_t height : kHeights) variants.push_back(in_tiles_of(height, options));
      }
    }
    for (const auto& options : variants) {
      SCOPED_TRACE("W=" + std::to_string(world) + ", N=" + std::to_string(options.cols) + ", " +
                   variant_name(options));
      with_gpu_ops(
          world, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
            const TestStream stream(comm);
            const RandomOperands operands(engine, op.spec(), 20 + 4 * comm.rank(), stream.get());
            const UnfusedPath unfused(comm, engine, 3000 * options.cols);
            const DeviceFindings found(engine);
            for (std::int64_t rows : {3000, 1, 129, 1024}) {
              for (const auto& x : {operands.x(rows), operands.x_by_block(rows)}) {
                check_against(unfused, x, operands.w(), comm, op, stream, found);
              }
            }
            found.expect_none("against the unfused path", stream.get());
            EXPECT_EQ(op.poison(), "");
          });
    }
  }
}

TEST(CudaNumbers, TheFusedPathIsWithin3e5OfTheCommunicatorsAllReduce) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 4, 8}) {
    const RandomGroup group(world, 500, 528, 512, 3);
    with_gpu_ops(world, gpus(), exact_options(500, 528, 512),
                 [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const OnDevice<RandomActivations> x(engine, group.xs[comm.rank()]);
                   const OnDevice<RandomWeight> w(engine, group.ws[comm.rank()]);
                   const auto partial = device_array<Bf16>(engine, 500 * 528);
                   engine.gemm(x.view(), w.view(), nullptr, partial.get(), nullptr);
                   std::vector<Bf16> base(500 * 528);
                   engine.download(base.data(), partial.get(), base.size() * 2, nullptr);
                   comm.all_reduce(base.data(), 500 * 528,
                                   Deadline::after(std::chrono::seconds(60)));
                   const auto fused = fetch(engine, op, op.run(x.view(), w.view()));
                   EXPECT_LE(relative_l2(fused, base), 3e-5) << "W=" << world;
                   if (world == 2) {
                     EXPECT_EQ(fused, base);
                   }
                 });
  }
}

TEST(CudaNumbers, N05_ARowsBitsDoNotDependOnMOrOnItsOwner) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& options : served_variants(exact_options(16384, 320, 384), 3)) {
    SCOPED_TRACE(variant_name(options));
    with_gpu_ops(3, gpus(), options, [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      CallsInTurn calls(comm, engine, op, 8);
      for (std::int64_t rows : {1, 5, 256, 512, 700, 4096, 16384}) {
        for (int repeat = 0; repeat < 21; ++repeat) calls.queue(rows);
      }
      calls.expect_equal();
    });
  }
}

TEST(CudaNumbers, N05_PartialsAreAddedInRankOrderWhoeverOwnsTheRow) {
  ROWBAND_NEEDS_GPUS(1);
  // Sums of 2^30, -2^30 and 1 in fp32 are 0 or 1, as the order has it.
  std::vector<float> partials{-0x1p30f, 1.0f, 0x1p30f};
  do {
    const float want = partials[0] + partials[1] + partials[2];
    with_gpu_ops(3, 1, exact_options(800, 8, 128),
                 [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
                   const float partial = partials[comm.rank()];
                   ConstantWeight weight(8, 128, partial < 0 ? -1.0f : 1.0f);
                   weight.scales[0] = std::abs(partial) / 128;
                   const OnDevice<ConstantActivations> x(engine, ConstantActivations(800, 128, 1));
                   const OnDevice<ConstantWeight> w(engine, weight);
                   for (Bf16 value : fetch(engine, op, op.run(x.view(), w.view()))) {
                     ASSERT_EQ(to_float(value), want);
                   }
                 });
  } while (std::next_permutation(partials.begin(), partials.end()));
}

TEST(CudaNumbers, GemmsOnTwoStreamsOfOneEngineDoNotDisturbEachOther) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr std::int64_t kRows = 3000, kCols = 2064;
  const auto engine = engine_for(0, 1, 1);
  const PlanSpec spec =
      engine->with_tiles({.max_rows = kRows, .cols = kCols, .depth = 640, .world = 1});
  const TestStream streams[2];
  const RandomOperands operands[2] = {{*engine, spec, 1, streams[0].get()},
                                      {*engine, spec, 9, streams[1].get()}};
  const DeviceFindings found(*engine);
  std::shared_ptr<Bf16> want[2], got[2];
  const auto multiply = [&](int i, Bf16* out) {
    engine->gemm(operands[i].x_by_block(kRows), operands[i].w(), nullptr, out, nullptr,
                 streams[i].get());
  };
  for (int i = 0; i < 2; ++i) {
    want[i] = device_array<Bf16>(*engine, kRows * kCols);
    got[i] = device_array<Bf16>(*engine, kRows * kCols);
    multiply(i, want[i].get());
    streams[i].wait();
  }
  for (int call = 0; call < 100; ++call) {
    for (int i = 0; i < 2; ++i) {
      check(cudaMemsetAsync(got[i].get(), 0xFF, kRows * kCols * sizeof(Bf16), streams[i].get()),
            "spoiling a result");
      multiply(i, got[i].get());
      check_equal(got[i].get(), want[i].get(), kRows * kCols * sizeof(Bf16), found.get(),
                  streams[i].get());
    }
  }
  for (const auto& stream : streams) stream.wait();
  found.expect_none("one gemm beside another", nullptr);
}

TEST(CudaNumbers, SumsOfTwoPartialsAreThoseOfFp32RoundedForEveryPair) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  const DeviceFindings findings(*engine);
  check_sums_of_two(findings.get(), nullptr);
  check(cudaDeviceSynchronize(), "comparing sums");
  findings.expect_none("sums of two", nullptr);
}

TEST(CudaNumbers, N01_BiasIsAddedOnce) {
  ROWBAND_NEEDS_GPUS(1);
  // K = 4 split in two, padded with zeros to a block per rank.
  const float x[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const float w[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  const float want[2][3] = {{130, 270, 410}, {170, 374, 576}};  // 578 reads 576 in bf16
  std::vector<Bf16> bias(8);
  for (int i = 0; i < 3; ++i) bias[i] = to_bf16(static_cast<float>(100 * (i + 1)));
  for (const auto& options : served_variants(exact_options(2, 8, 128), 2)) {
    if (options.wire != Wire::kBf16) continue;  // 410 beside 270 is not exact in e4m3
    with_gpu_ops(2, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      ConstantActivations xs(2, 128, 0);
      ConstantWeight ws(8, 128, 0);
      for (int k = 0; k < 2; ++k) {
        for (int m = 0; m < 2; ++m) xs.codes[m * 128 + k] = to_e4m3(x[m][comm.rank() * 2 + k]);
        for (int n = 0; n < 3; ++n) ws.codes[n * 128 + k] = to_e4m3(w[n][comm.rank() * 2 + k]);
      }
      const OnDevice<ConstantActivations> xd(engine, xs);
      const OnDevice<ConstantWeight> wd(engine, ws);
      const auto b = engine.upload(bias.data(), bias.size() * sizeof(Bf16));
      const auto y =
          fetch(engine, op, op.run(xd.view(), wd.view(), static_cast<const Bf16*>(b.get())));
      for (int m = 0; m < 2; ++m) {
        for (int n = 0; n < 3; ++n) EXPECT_EQ(to_float(y[m * 8 + n]), want[m][n]);
      }
    });
  }
}

TEST(CudaNumbers, N09_TheFp8WireWithRowsThatDivideByNothing) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  for (const auto& options : all_modes(exact_options(1000, 272, 128))) {
    if (options.wire != Wire::kFp8) continue;
    const auto why = engine->why_not_served(GemmAllReduce::plan_spec(*engine, options, 8));
    if (!why.empty()) {  // declined, with the reason
      EXPECT_THAT(why, AnyOf(HasSubstr("wire fp8"), HasSubstr("gather scale row")));
      continue;
    }
    with_gpu_ops(8, gpus(), options, [](Communicator& comm, Engine& gpu, GemmAllReduce& op) {
      const ExactCalls calls(comm, gpu, op);
      calls.queue(1000, 1);
      calls.queue(999, 2);
      calls.expect_exact();
    });
  }
}

TEST(CudaNumbers, NaNStaysInItsRowAndReachesEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  for (const auto& options : served_variants(exact_options(64, 128, 128), 2)) {
    with_gpu_ops(2, gpus(), options, [&](Communicator& comm, Engine& engine, GemmAllReduce& op) {
      ConstantActivations host(64, 128, 1);
      if (comm.rank() == 0) host.codes[40 * 128] = {0x7F};
      const OnDevice<ConstantActivations> x(engine, host);
      const OnDevice<ConstantWeight> w(engine, ConstantWeight(128, 128, 2));
      const auto y = fetch(engine, op, op.run(x.view(), w.view()));
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (i / 128 == 40) {
          EXPECT_TRUE(std::isnan(to_float(y[i]))) << variant_name(options);
        } else {
          ASSERT_EQ(to_float(y[i]), 512.0f) << "row " << i / 128;
        }
      }
    });
  }
}

TEST(CudaNumbers, Q08_RowsBehindMAreNotRead) {
  ROWBAND_NEEDS_GPUS(1);
  with_gpu_ops(
      2, gpus(), exact_options(256, 272, 256),
      [](Communicator& comm, Engine& engine, GemmAllReduce& op) {
        const TestStream stream(comm);
        const RandomOperands operands(engine, op.spec(), 90 + comm.rank(), stream.get());
        const DeviceFindings found(engine);
        for (std::int64_t rows : {1, 33, 100, 127}) {
          const ActivationView x = operands.x(rows);
          auto* codes = const_cast<E4m3*>(x.codes) + rows * 256;
          auto* scales = const_cast<float*>(x.scales) + rows * 2;
          Output results[2];
          for (int fill : {0, 1}) {
            ASSERT_EQ(cudaMemsetAsync(codes, fill * 0xFF, (256 - rows) * 256, stream.get()),
                      cudaSuccess);
            ASSERT_EQ(cudaMemsetAsync(scales, fill * 0xFF, (256 - rows) * 2 * 4, stream.get()),
                      cudaSuccess);
            results[fill] = op.run(x, operands.w(), nullptr, nullptr, nullptr, stream.get());
          }
          check_equal(results[0].data, results[1].data, bytes_of(results[0]), found.get(),
                      stream.get());
        }
        found.expect_none("NaN behind M", stream.get());
        EXPECT_EQ(op.poison(), "");
      });
}

}  // namespace
}  // namespace rowband::cuda
