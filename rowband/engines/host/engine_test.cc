#include "rowband/engines/host/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "rowband/engines/fault_hooks.h"
#include "rowband/engines/host/affinity_test_support.h"
#include "rowband/engines/host/machine.h"
#include "rowband/engines/host/tile_gemm.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/operands.h"

namespace rowband::host {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

std::vector<Bf16> multiply(Engine& engine, const RandomActivations& x, const RandomWeight& w,
                           const Bf16* bias) {
  std::vector<Bf16> out(x.rows * w.cols);
  engine.gemm(x.view(), w.view(), bias, out.data(), nullptr);
  return out;
}

TEST(HostEngine, GemmIsAccurateWithAndWithoutBiasForEveryKernelAndThreadCount) {
  for (const auto& [rows, cols, depth] :
       {std::tuple{1, 8, 128}, {33, 136, 256}, {300, 520, 384}, {257, 264, 1152}}) {
    const RandomActivations x(rows, depth, 3);
    const RandomWeight w(cols, depth, 4);
    const auto bias = random_bf16(cols, 5);
    std::vector<std::int64_t> all_rows(rows);
    for (int row = 0; row < rows; ++row) all_rows[row] = row;
    const std::vector<ActivationView> xs{x.view()};
    const std::vector<WeightView> ws{w.view()};
    for (const Bf16* b : {static_cast<const Bf16*>(nullptr), bias.data()}) {
      const auto want = reference_rows(xs, ws, b, all_rows, 1);
      for (const TileGemm& kernel : supported_tile_gemms()) {
        const std::string name(kernel.name);
        std::vector<Bf16> first;
        for (int threads : {1, 3}) {
          const auto engine = make_host_engine(0, {.threads = threads, .gemm_kernel = name});
          const auto got = multiply(*engine, x, w, b);
          EXPECT_LE(relative_l2(got, want), 3e-3) << name;
          if (first.empty()) first = got;
          EXPECT_EQ(got, first) << name << ": the threads changed bits";
        }
      }
    }
  }
}

TEST(HostEngine, M01_NoRowsTouchNothing) {
  const auto engine = test_engine(0, 2);
  const RandomWeight w(64, 128, 1);
  engine->gemm({nullptr, 0, 128, 0, nullptr, 0, 0}, w.view(), nullptr, nullptr, nullptr);
  engine->quantize(nullptr, 0, 128, 128, ScaleFormat::kFp32, nullptr, nullptr);
}

TEST(HostEngine, GemmWritesItsRowsAndNoMore) {
  const auto engine = test_engine(0, 2);
  const RandomWeight w(72, 128, 1);
  for (std::int64_t rows : {1, 31, 32, 255, 257}) {
    const RandomActivations x(rows, 128, 2);
    std::vector<Bf16> out(rows * 72 + 64, Bf16{0x5A5A});
    engine->gemm(x.view(), w.view(), nullptr, out.data(), nullptr);
    for (std::size_t i = rows * 72; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0x5A5A);
  }
}

TEST(HostEngine, GemmRecordsEveryTile) {
  Timeline timeline;
  const auto engine = test_engine(3, 2);
  const RandomActivations x(300, 128, 2);
  const RandomWeight w(264, 128, 1);
  std::vector<Bf16> out(300 * 264);
  engine->gemm(x.view(), w.view(), nullptr, out.data(), &timeline);
  ASSERT_EQ(timeline.events().size(), 4u);
  for (const auto& event : timeline.events()) {
    EXPECT_EQ(event.rank, 3);
    EXPECT_EQ(event.activity, Activity::kGemm);
  }
}

TEST(HostEngine, QuantizeGivesTheScalarQuantisersBitsOnAnyThreads) {
  const std::int64_t stride = 512 + 40;
  for (std::int64_t rows : {1, 15, 16, 17, 333}) {
    auto x = random_bf16(rows * stride, 8, 3.0f);
    for (std::size_t i = 0; i < x.size(); i += 1013) x[i].bits = static_cast<std::uint16_t>(i * 7);
    for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
      std::vector<E4m3> want(rows * 512);
      std::vector<float> want_scales(rows * 4);
      quantize_activations(x.data(), rows, 512, stride, format, want.data(), 512,
                           want_scales.data());
      for (int threads : {1, 2, 5}) {
        std::vector<E4m3> codes(rows * 512 + 16, E4m3{0xAA});
        std::vector<float> scales(rows * 4 + 1, -7.0f);
        test_engine(0, threads)
            ->quantize(x.data(), rows, 512, stride, format, codes.data(), scales.data());
        ASSERT_EQ(std::memcmp(codes.data(), want.data(), want.size()), 0);
        ASSERT_EQ(std::memcmp(scales.data(), want_scales.data(), want_scales.size() * 4), 0);
        EXPECT_EQ(codes[rows * 512].bits, 0xAA);
        EXPECT_EQ(scales[rows * 4], -7.0f);
      }
    }
  }
  EXPECT_THAT(error_of([] {
                test_engine(0)->quantize(nullptr, 1, 200, 200, ScaleFormat::kFp32, nullptr,
                                         nullptr);
              }),
              AllOf(HasSubstr("depth=200"), HasSubstr("128")));
}

TEST(HostEngine, C01_AnUnknownKernelListsTheLegalOnes) {
  const std::string text =
      error_of([] { make_host_engine(0, {.threads = 1, .gemm_kernel = "AVX-9000"}); });
  EXPECT_THAT(text, HasSubstr("AVX-9000"));
  for (const TileGemm& kernel : supported_tile_gemms()) {
    EXPECT_THAT(text, HasSubstr(fmt::format("'{}'", kernel.name)));
  }
  EXPECT_EQ(find_tile_gemm("").name, supported_tile_gemms().front().name);
  EXPECT_THAT(error_of([] { parse_engine("gpu"); }), AllOf(HasSubstr("gpu"), HasSubstr("host")));
  EXPECT_EQ(engine_name(parse_engine("host")), "host");
}

int threads_of(const EngineOptions& options) {
  const std::string text = make_host_engine(0, options)->description();
  const std::size_t at = text.rfind(", ");
  return std::stoi(text.substr(at + 2));
}

TEST(HostEngine, TheCoresAreDealtOverTheRanksUnlessToldOtherwise) {
  const int cores = allowed_cores();
  EXPECT_EQ(threads_of({.threads = 3, .gemm_kernel = ""}), 3);
  EXPECT_EQ(threads_of({.threads = 3, .local_ranks = 8, .gemm_kernel = ""}), 3);
  EXPECT_EQ(threads_of({.gemm_kernel = ""}), cores);
  EXPECT_EQ(threads_of({.local_ranks = cores, .gemm_kernel = ""}), 1);
  EXPECT_EQ(threads_of({.local_ranks = 10 * cores, .gemm_kernel = ""}), 1);
  on_cores({own_cores().front()}, [] { EXPECT_EQ(threads_of({.gemm_kernel = ""}), 1); });
  EXPECT_THAT(error_of([] { make_host_engine(0, {.threads = -1, .gemm_kernel = ""}); }),
              HasSubstr("threads=-1"));
}

TEST(HostEngine, O01_NoRoomIsSaidWithNeededAndFreeBytes) {
  const auto engine = test_engine(0);
  EXPECT_EQ(engine->why_no_room(4096, 8, nullptr), "");
  FaultHooks faults;
  faults.available_bytes = 4 * 4096;
  EXPECT_EQ(engine->why_no_room(4096, 4, &faults), "");
  EXPECT_THAT(engine->why_no_room(4096, 5, &faults),
              AllOf(HasSubstr("20480 bytes"), HasSubstr("5 ranks x 4096"), HasSubstr("16384")));
  EXPECT_THAT(engine->why_no_room(std::int64_t{1} << 50, 2, nullptr),
              HasSubstr(std::to_string(std::int64_t{1} << 51)));
}

TEST(HostEngine, WindowBytesFollowThePlanAndRefuseWhatItRefuses) {
  const auto engine = test_engine(0);
  const PlanSpec spec =
      engine->with_tiles({.max_rows = 1000, .cols = 64, .depth = 128, .world = 4});
  EXPECT_GE(engine->window_bytes(spec), 2 * 1000 * 64 * 2 + 3 * 250 * 64 * 2);
  PlanSpec bad = spec;
  bad.cols = 12;
  EXPECT_THAT(error_of([&] { engine->window_bytes(bad); }), HasSubstr("multiple of 8"));
}

// On one core, with the threads that the engine picks by itself.
TEST(HostEngine, X01_X03_OneCoreServesAnyWorldAndTheMaskIsKept) {
  const int core = own_cores().front();
  for (int world : {1, 2, 4}) {
    for (const auto& options : all_modes(exact_options(300, 64, 128))) {
      on_cores({core}, [&] {
        const auto before = cores_of_threads();
        run_ranks(world, [&](Communicator& comm) {
          const std::shared_ptr<Engine> engine = make_engine(
              EngineKind::kHost, comm.rank(), {.local_ranks = world, .gemm_kernel = ""});
          const auto op = GemmAllReduce::create(comm, engine, options);
          const ExactWeight w(64, 128);
          for (int call = 1; call <= 5; ++call) run_exact(comm, *op, w, call * 60, call);
          for (const auto& [thread, cores] : cores_of_threads()) {
            if (before.count(thread) == 0) {
              EXPECT_EQ(cores, std::to_string(core));
            }
          }
          EXPECT_EQ(own_cores(), std::vector<int>{core});
          comm.barrier(Deadline::after(std::chrono::seconds(30)));
        });
        EXPECT_EQ(own_cores(), std::vector<int>{core});
      });
    }
  }
}

TEST(HostEngine, M03_RowsBeyond32BitOffsets) {
  // 299,594 rows: the last one is right. With eight slots of 1,024 columns the window passes 2^32
  // bytes; only the pages of the slots in use are ever touched.
  const std::int64_t rows = 299594;
  with_ops(2, exact_options(rows, 8, 128), [&](Communicator& comm, GemmAllReduce& op) {
    run_exact(comm, op, ExactWeight(8, 128), rows, 1);
  });
  auto options = exact_options(rows, 1024, 128);
  options.slots = 8;
  options.self_test = false;
  auto faults = std::make_shared<FaultHooks>();
  faults->first_call = 7;  // the last slot
  faults->available_bytes = INT64_MAX;
  options.faults = faults;
  ASSERT_GT(GemmAllReduce::window_bytes(*test_engine(0), options, 2), std::int64_t{1} << 32);
  for (auto mode : all_modes(options)) {
    mode.slots = 8;
    with_ops(2, mode, [&](Communicator& comm, GemmAllReduce& op) {
      const ExactWeight w(1024, 128);
      run_exact(comm, op, w, 1200, 1);
    });
  }
}

}  // namespace
}  // namespace rowband::host
