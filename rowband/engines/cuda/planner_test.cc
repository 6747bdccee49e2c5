// What the planner decides, without a GPU.
#include "rowband/engines/cuda/planner.h"

#include <gmock/gmock.h>

namespace rowband::cuda {
namespace {

using testing::HasSubstr;

// docs/performance.md has the times by height.
TEST(Planner, TakesTheTileHeightsThatMeasuredFastest) {
  const auto cuda = make_cuda_planner({});
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
TEST(Planner, PacksPartialsWhereTheLinkIsWhatCallsWaitFor) {
  const auto cuda = make_cuda_planner({});
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
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.depth = 2304; })), slower.chunks);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.depth = 4096; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.transport = Transport::kCopyEngine; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.cols = 7176; })), 0);
  EXPECT_EQ(packed(with([](PlanSpec& s) { s.world = 1; })), 0);
  const auto fewer = make_cuda_planner({.multiprocessors = 116});
  EXPECT_EQ(fewer->with_tiles(slower).packed_chunks, slower.chunks);
  // Where own tiles come between the peers', the first.
  const auto of_fp8 = [&](int chunks, std::int64_t depth) {
    return packed(
        with([&](PlanSpec& s) { s.wire = Wire::kFp8, s.chunks = chunks, s.depth = depth; }));
  };
  EXPECT_EQ(of_fp8(8, 2048), 5);
  EXPECT_EQ(of_fp8(12, 2048), 7);
  EXPECT_EQ(of_fp8(1, 2048), 1);
  EXPECT_EQ(of_fp8(8, 4096), 0);
  // Tiles of 192 rows only where they are not all packed.
  const auto height = [&](PlanSpec spec) { return cuda->with_tiles(spec).tile_rows; };
  EXPECT_EQ(height(slower), 128);
  EXPECT_EQ(height(with([](PlanSpec& s) { s.wire = Wire::kFp8, s.chunks = 8; })), 192);
}

TEST(Planner, DeclinesWhatItsThirtyTwoBitsDoNotHold) {
  const auto cuda = make_cuda_planner({});
  const auto why = [&](std::int64_t rows, std::int64_t cols, std::int64_t depth) {
    return cuda->why_not_served(
        cuda->with_tiles({.max_rows = rows, .cols = cols, .depth = depth, .world = 2}));
  };
  constexpr std::int64_t kTooMany = std::int64_t{1} << 31;
  EXPECT_EQ(why(16, 7168, kTooMany - 128), "");
  EXPECT_EQ(why(16, kTooMany - 1024, 128), "");
  EXPECT_THAT(why(kTooMany, 7168, 128), HasSubstr("max_rows=2147483648"));
  EXPECT_THAT(why(16, kTooMany, 128), HasSubstr("N=2147483648"));
  EXPECT_THAT(why(16, 7168, kTooMany), HasSubstr("K=2147483648"));
}

// docs/performance.md has the times by pieces on the link.
TEST(Planner, PutsMorePiecesOnTheLinkInLongCalls) {
  const auto cuda = make_cuda_planner({});
  const auto pieces = [&](std::int64_t rows, std::int64_t depth, int world, std::int64_t height) {
    PlanSpec spec = cuda->with_tiles(
        {.max_rows = 16384, .cols = 7168, .depth = depth, .world = world, .chunks = 2});
    spec.tile_rows = spec.min_tile_rows = height;
    return pieces_on_link(spec, CallPlan(spec, rows));
  };
  EXPECT_EQ(pieces(16384, 2048, 2, 128), 112);
  EXPECT_EQ(pieces(16384, 4096, 2, 192), 96);  // not packed
  EXPECT_EQ(pieces(2048, 2048, 2, 128), 112);
  EXPECT_EQ(pieces(1024, 2048, 2, 128), 72);  // 3.4 rounds of tiles
  EXPECT_EQ(pieces(2048, 2048, 2, 64), 72);   // 13.6
  EXPECT_EQ(pieces(3072, 2048, 2, 64), 112);
  EXPECT_EQ(pieces(256, 2048, 2, 128), 0);  // one round
  EXPECT_EQ(pieces(16384, 2048, 8, 128), 224);
  EXPECT_EQ(pieces(1024, 2048, 8, 128), 144);
}

}  // namespace
}  // namespace rowband::cuda
