// The choice of an engine: names, what a build and a machine lack, plans without hardware.
#include "rowband/engines/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rowband/base/error.h"
#ifdef ROWBAND_HAVE_CUDA
#include "rowband/engines/cuda/engine.h"
#endif

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool have_cuda() {
#ifdef ROWBAND_HAVE_CUDA
  return true;
#else
  return false;
#endif
}

bool have_hopper() {
#ifdef ROWBAND_HAVE_CUDA
  return cuda::sees_hopper();
#else
  return false;
#endif
}

template <typename Action>
void expect_unavailable(const char* words, Action action) {
  try {
    action();
    ADD_FAILURE() << "nothing was thrown; wanted: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_THAT(error.what(), HasSubstr(words));
  }
}

TEST(Engines, C01_NamesAreExactAndAWrongOneListsThem) {
  for (EngineKind kind : {EngineKind::kHost, EngineKind::kCuda}) {
    EXPECT_EQ(parse_engine(engine_name(kind)), kind);
  }
  for (const char* wrong : {"CUDA", "gpu", "", "cuda "}) {
    try {
      parse_engine(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("'host'"), HasSubstr("'cuda'")));
    }
  }
}

TEST(Engines, TheDefaultIsCudaExactlyWhereThereIsAHopperGpu) {
  EXPECT_EQ(default_engine(), have_hopper() ? EngineKind::kCuda : EngineKind::kHost);
  EXPECT_EQ(make_engine(default_engine(), 0, {.threads = 1, .gemm_kernel = ""})->name(),
            engine_name(default_engine()));
}

TEST(Engines, WhatTheBuildOrTheMachineLacksIsSaid) {
  const auto make = [] { make_engine(EngineKind::kCuda, 0, {.gemm_kernel = ""}); };
  if (!have_cuda()) return expect_unavailable("this build has no cuda engine", make);
  if (!have_hopper()) return expect_unavailable("GPU", make);
  expect_unavailable("device 99",
                     [] { make_engine(EngineKind::kCuda, 0, {.gemm_kernel = "", .device = 99}); });
}

PlanSpec shape(const EnginePlanner& planner, int world) {
  return planner.with_tiles({.max_rows = 16384, .cols = 7168, .depth = 2048, .world = world});
}

// docs/performance.md has the times by height. Only shapes where one height is clearly ahead.
TEST(Engines, TheCudaPlannerTakesTheTileHeightsThatMeasuredFastest) {
  if (!have_cuda()) GTEST_SKIP() << "this build has no cuda engine";
  const auto cuda = make_planner(EngineKind::kCuda, {});
  const auto picked = [&](std::int64_t rows, std::int64_t depth, Wire wire, int world) {
    const PlanSpec spec = cuda->with_tiles({.max_rows = 16384,
                                            .cols = 7168,
                                            .depth = depth,
                                            .world = world,
                                            .wire = wire,
                                            .chunks = cuda->best_chunks(Transport::kDirect, wire)});
    return pick_tile_rows(spec, rows);
  };
  for (std::int64_t rows : {128, 512, 1024, 1536}) {
    EXPECT_EQ(picked(rows, 2048, Wire::kBf16, 2), 64) << rows;
  }
  for (std::int64_t rows : {192, 256, 3072, 4096, 8192, 16384}) {
    EXPECT_EQ(picked(rows, 2048, Wire::kBf16, 2), 128) << rows;
  }
  EXPECT_EQ(picked(128, 2048, Wire::kFp8, 2), 64);
  for (std::int64_t rows : {256, 512, 1024, 2048}) {
    EXPECT_EQ(picked(rows, 2048, Wire::kFp8, 2), 128) << rows;
  }
  for (std::int64_t rows : {8192, 16384}) EXPECT_EQ(picked(rows, 2048, Wire::kFp8, 2), 192) << rows;
  EXPECT_EQ(picked(1024, 4096, Wire::kBf16, 2), 128);
  EXPECT_EQ(picked(4096, 8192, Wire::kBf16, 2), 192);
  EXPECT_EQ(picked(16384, 8192, Wire::kBf16, 2), 192);
  for (std::int64_t depth : {2048, 8192}) EXPECT_EQ(picked(16384, depth, Wire::kBf16, 1), 192);
}

// docs/performance.md has the times with packed partials and without.
TEST(Engines, TheCudaPlannerPacksPartialsWhereTheLinkIsWhatCallsWaitFor) {
  if (!have_cuda()) GTEST_SKIP() << "this build has no cuda engine";
  const auto cuda = make_planner(EngineKind::kCuda, {});
  const PlanSpec slower{.max_rows = 16384, .cols = 7168, .depth = 2048, .world = 2};
  const auto packed = [&](PlanSpec spec) { return cuda->with_tiles(spec).packed_chunks; };
  const auto with = [&](auto change) {
    PlanSpec spec = slower;
    change(spec);
    return spec;
  };
  EXPECT_EQ(packed(slower), slower.chunks);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.depth = 1024, s.wire = Wire::kFp8; })), slower.chunks);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.world = 8; })), slower.chunks);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.depth = 4096; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.transport = Transport::kCopyEngine; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.cols = 7176; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.world = 1; })), 0);
  // Where own tiles come between the peers', the first.
  const auto of_fp8 = [&](int chunks, std::int64_t depth) {
    return packed(
        with([&](PlanSpec& s) { s.wire = Wire::kFp8, s.chunks = chunks, s.depth = depth; }));
  };
  EXPECT_EQ(of_fp8(8, 2048), 3);
  EXPECT_EQ(of_fp8(12, 2048), 4);
  EXPECT_EQ(of_fp8(1, 2048), 1);
  EXPECT_EQ(of_fp8(8, 4096), 0);
  // Tiles of 192 rows only where they are not all packed.
  const auto height = [&](PlanSpec spec) { return cuda->with_tiles(spec).tile_rows; };
  EXPECT_EQ(height(slower), 128);
  EXPECT_EQ(height(with([](PlanSpec& s) { s.wire = Wire::kFp8, s.chunks = 8; })), 192);
}

TEST(Engines, APlanNeedsNoHardware) {
  const auto host = make_planner(EngineKind::kHost, {});
  EXPECT_EQ(host->why_not_served(shape(*host, 8)), "");
  EXPECT_EQ(host->tiles_at_once(), 0);
  EXPECT_EQ(host->best_chunks(Transport::kDirect, Wire::kBf16), 4);
  if (!have_cuda()) {
    return expect_unavailable("this build has no cuda engine",
                              [] { make_planner(EngineKind::kCuda, {}); });
  }
  const auto cuda = make_planner(EngineKind::kCuda, {});
  const PlanSpec spec = shape(*cuda, 2);
  EXPECT_EQ(cuda->why_not_served(spec), "");
  EXPECT_EQ(cuda->tiles_at_once(), 66);  // 132 SMs in pairs
  // Own tiles come between the peers' on the fp8 wire by stores alone.
  EXPECT_LT(spec.own_lag, 0);
  EXPECT_EQ(cuda->with_tiles({.world = 2, .wire = Wire::kFp8}).own_lag, 66);
  EXPECT_LT(cuda->with_tiles({.world = 2, .wire = Wire::kFp8, .transport = Transport::kCopyEngine})
                .own_lag,
            0);
  EXPECT_EQ(cuda->best_chunks(Transport::kDirect, Wire::kBf16), 2);
  EXPECT_EQ(cuda->best_chunks(Transport::kDirect, Wire::kFp8), 8);
  EXPECT_EQ(cuda->best_chunks(Transport::kCopyEngine, Wire::kBf16), 4);
  // One band of partials, half of the rows, and two slots of results; control words beside,
  // and a 512th of the partials to tell how they are packed.
  const std::int64_t rows_bytes = 7168 * 2, rows = 8192 + 2 * 16384;
  const std::int64_t heads = 8192 * rows_bytes / 512;
  EXPECT_GT(cuda->window_bytes(spec), rows * rows_bytes + heads);
  EXPECT_LT(cuda->window_bytes(spec), rows * rows_bytes + heads + 16384);
  EXPECT_EQ(
      make_planner(EngineKind::kCuda, {.multiprocessors = 114, .device_ranks = 4})->tiles_at_once(),
      14);
  EXPECT_THROW(make_planner(EngineKind::kCuda, {.multiprocessors = 8, .device_ranks = 5}), Error);
}

#ifdef ROWBAND_HAVE_CUDA
TEST(CudaEngines, TheEnginePlansAsItsPlannerDoes) {
  if (!have_hopper()) GTEST_SKIP() << "needs a Hopper GPU, this process sees none";
  const auto engine = make_engine(EngineKind::kCuda, 0, {.gemm_kernel = "", .device_ranks = 2});
  const auto planner = make_planner(
      EngineKind::kCuda, {.multiprocessors = 4 * engine->tiles_at_once(), .device_ranks = 2});
  const PlanSpec spec = shape(*engine, 2);
  EXPECT_EQ(spec.tile_rows, shape(*planner, 2).tile_rows);
  EXPECT_EQ(spec.tile_cols, shape(*planner, 2).tile_cols);
  EXPECT_EQ(engine->window_bytes(spec), planner->window_bytes(spec));
}
#endif

}  // namespace
}  // namespace rowband
