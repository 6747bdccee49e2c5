// Which height a call's tiles get, and what a call is expected to take.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rowband/plan/plan.h"

namespace rowband {
namespace {

using testing::HasSubstr;

TEST(Plan, TallTilesUnlessARankWouldGoWithoutABand) {
  PlanSpec spec{.max_rows = 4096, .cols = 7168, .depth = 2048, .world = 2};
  EXPECT_EQ(pick_tile_rows(spec, 4096), 256);
  EXPECT_EQ(pick_tile_rows(spec, 257), 256);
  EXPECT_EQ(pick_tile_rows(spec, 256), 128);
  EXPECT_EQ(pick_tile_rows(spec, 1), 32);
  EXPECT_EQ(pick_tile_rows(spec, 0), 32);
}

PlanSpec costed_spec() {
  return {.max_rows = 16384,
          .cols = 7168,
          .depth = 2048,
          .world = 2,
          .tile_rows = 192,
          .min_tile_rows = 64,
          .cost = {.workers = 66,
                   .tile_us = 1,
                   .block_us = {0.4, 0.5, 0.6},
                   .link_bytes_per_us = 350e3,
                   .encode_us = 1.5}};
}

TEST(Plan, WhereTheCostIsKnownTheHeightOfLeastTimeIsTaken) {
  PlanSpec spec = costed_spec();
  EXPECT_EQ(next_height(spec, 192), 128);
  EXPECT_EQ(next_height(spec, 128), 64);
  EXPECT_EQ(next_height(spec, 64), 0);
  for (Transport transport : {Transport::kCopyEngine, Transport::kDirect}) {
    spec.transport = transport;
    for (std::int64_t rows : {0, 1, 128, 700, 4096, 16384}) {
      const std::int64_t picked = pick_tile_rows(spec, rows);
      for (std::int64_t height : {64, 128, 192}) {
        EXPECT_LE(expected_us(spec, rows, picked), expected_us(spec, rows, height)) << rows;
        EXPECT_GE(expected_us(spec, rows, height), 0) << rows;
      }
      EXPECT_EQ(CallPlan(spec, rows).tile_rows(), picked);
    }
  }
  // Low tiles give each rank a band where tall ones give one rank all, and the last ones' results
  // take less; tall ones multiply faster.
  EXPECT_EQ(pick_tile_rows(spec, 16384), 128);
  spec.depth = 8192;
  EXPECT_EQ(pick_tile_rows(spec, 128), 64);
  EXPECT_EQ(pick_tile_rows(spec, 16384), 192);
  spec.world = 1;
  EXPECT_EQ(pick_tile_rows(spec, 16384), 192);
  spec.cost.block_us.fill(0.4);
  EXPECT_EQ(expected_us(spec, 1, 64), expected_us(spec, 1, 128));
  EXPECT_EQ(pick_tile_rows(spec, 1), 64);  // of equals the lowest
}

TEST(Plan, TheExpectedTimeIsTheFirstTileThenTheLongerOfTilesAndTransfersThenTheLastResults) {
  PlanSpec spec = costed_spec();
  const auto us = [](double bytes) { return bytes / 350e3; };
  const double tile = 1 + 16 * 0.6;
  // 86 x 28 tiles by 66; bands of 8256 and 8128 rows, 43 tile rows each.
  const double band = 8256.0 * 7168 * 2, last_round = 66 / (43 * 28.0);
  EXPECT_NEAR(expected_us(spec, 16384, 192), tile + us(2 * band) + us(band * last_round), 1e-6);
  spec.transport = Transport::kCopyEngine;  // chunks of 11, 11, 11 and 10 tile rows: 5 rounds, ...
  EXPECT_NEAR(expected_us(spec, 16384, 192), 5 * tile + us(2 * band) + us(band * 10 / 43), 1e-6);
  spec.transport = Transport::kDirect;
  spec.packed_chunks = 4;
  spec.packing_head_bytes = 16;
  const double packed = band * 3 / 4 + band / 512;
  EXPECT_NEAR(expected_us(spec, 16384, 192), tile + us(packed + band) + us(band * last_round),
              1e-6);
  spec.packed_chunks = 0;
  spec.wire = Wire::kFp8;  // results of a byte an element, and 56 scales a row
  const double codes = 8256 * (7168 + 56 * 4);
  EXPECT_NEAR(expected_us(spec, 16384, 192),
              tile + us(band + codes) + 3 * 1.5 + us(codes * last_round), 1e-6);
  spec.depth = 8192;
  const double deep = 1 + 64 * 0.6;
  // Half of the tiles are own ones, of three parts to encode; the last ones' are waited for.
  EXPECT_NEAR(expected_us(spec, 16384, 192),
              deep + 37 * (deep + 3 * 1.5 / 2) + 3 * 1.5 + us(codes * last_round), 1e-6);
  spec.wire = Wire::kBf16;
  EXPECT_NEAR(expected_us(spec, 16384, 192), deep + 37 * deep + us(band * last_round), 1e-6);
  spec.depth = 2048;
  spec.world = 1;
  EXPECT_NEAR(expected_us(spec, 64, 64), (1 + 16 * 0.4) * 2, 1e-6);
  EXPECT_NEAR(expected_us(spec, 128, 128), (1 + 16 * 0.5) * 2, 1e-6);
  spec.tile_rows = 256;
  EXPECT_THAT(why_not_expressible(spec), HasSubstr("the cost is known of 3 heights"));
}

TEST(Plan, AWindowHoldsTheBandsOfEveryHeight) {
  PlanSpec spec = costed_spec();
  for (std::int64_t max_rows = 1; max_rows < 1500; max_rows += 37) {
    for (int world : {2, 3, 8}) {
      spec.max_rows = max_rows;
      spec.world = world;
      const WindowLayout layout = plan_window(spec, 4096);
      for (std::int64_t rows = 0; rows <= max_rows; rows += 11) {
        for (std::int64_t height : {64, 128, 192}) {
          const TileOrder order{rows, spec.cols, height, spec.tile_cols, world, spec.chunks};
          ASSERT_LE(order.rows_of(order.band_tiles(0)).size(), layout.band_rows)
              << "M=" << rows << " of " << max_rows << " W=" << world << " height " << height;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rowband
