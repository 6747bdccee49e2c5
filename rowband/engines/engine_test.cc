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
