#include "rowband/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "rowband/base/error.h"

namespace rowband {
namespace {

using testing::HasSubstr;

PlanSpec small_spec(int world, int chunks, std::int64_t tile_rows) {
  PlanSpec spec;
  spec.max_rows = 300;
  spec.cols = 136;
  spec.depth = 128;
  spec.world = world;
  spec.chunks = chunks;
  spec.tile_rows = tile_rows;
  spec.min_tile_rows = std::min<std::int64_t>(tile_rows, 8);
  spec.tile_cols = 128;
  return spec;
}

// Calls check(spec) over the whole grid of small worlds, chunk counts and tile heights.
template <typename Check>
void for_each_small_spec(const Check& check) {
  for (int world = 1; world <= 8; ++world) {
    for (int chunks : {1, 2, 3, 4, 7}) {
      for (std::int64_t tile_rows : {8, 16, 64}) {
        SCOPED_TRACE(testing::Message()
                     << "W=" << world << " chunks=" << chunks << " tile_rows=" << tile_rows);
        check(small_spec(world, chunks, tile_rows));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Plan, BandsAndChunksPartitionTheRowsInOrder) {
  for_each_small_spec([](const PlanSpec& spec) {
    for (std::int64_t rows = 0; rows <= spec.max_rows; ++rows) {
      const CallPlan plan(spec, rows);
      std::int64_t next = 0;
      for (int owner = 0; owner < spec.world; ++owner) {
        const Range band = plan.band(owner);
        ASSERT_EQ(band.begin, next) << "M=" << rows;
        ASSERT_EQ(plan.chunks(owner) == 0, band.size() == 0);
        ASSERT_LE(plan.chunks(owner), spec.chunks);
        for (int c = 0; c < plan.chunks(owner); ++c) {
          ASSERT_EQ(plan.chunk(owner, c).begin, next);
          ASSERT_GT(plan.chunk(owner, c).size(), 0);
          next = plan.chunk(owner, c).end;
        }
        ASSERT_EQ(band.end, next);
      }
      ASSERT_EQ(next, rows);
    }
  });
}

TEST(Plan, TileRowsAreDealtEvenly) {
  for_each_small_spec([](const PlanSpec& spec) {
    for (std::int64_t rows = 0; rows <= spec.max_rows; ++rows) {
      const CallPlan plan(spec, rows);
      std::int64_t least = plan.tiles(), most = 0;
      for (int owner = 0; owner < spec.world; ++owner) {
        std::int64_t tiles = 0;
        for (int c = 0; c < plan.chunks(owner); ++c) tiles += plan.tiles_in_chunk(owner, c);
        least = std::min(least, tiles);
        most = std::max(most, tiles);
      }
      ASSERT_LE(most - least, plan.col_tiles()) << "M=" << rows;  // one tile row at most
    }
  });
}

TEST(Plan, EveryElementIsInExactlyOneTileOfEachRank) {
  for_each_small_spec([](const PlanSpec& spec) {
    for (std::int64_t rows : {0, 1, 7, 8, 9, 63, 64, 65, 129, 200, 299, 300}) {
      const CallPlan plan(spec, rows);
      for (int rank = 0; rank < spec.world; ++rank) {
        std::vector<int> covered(static_cast<std::size_t>(rows * spec.cols), 0);
        for (std::int64_t i = 0; i < plan.tiles(); ++i) {
          const Tile tile = plan.tile(rank, i);
          for (auto r = tile.rows.begin; r < tile.rows.end; ++r) {
            for (auto c = tile.cols.begin; c < tile.cols.end; ++c) ++covered[r * spec.cols + c];
          }
          const Range chunk = plan.chunk(tile.band, tile.chunk);
          ASSERT_TRUE(chunk.begin <= tile.rows.begin && tile.rows.end <= chunk.end);
        }
        for (int count : covered) ASSERT_EQ(count, 1) << "M=" << rows << " rank=" << rank;
      }
    }
  });
}

TEST(Plan, PeersComeFirstAndRotatedTheOwnBandLast) {
  for_each_small_spec([](const PlanSpec& spec) {
    for (std::int64_t rows : {1, 8, 65, 300}) {
      const CallPlan plan(spec, rows);
      for (int rank = 0; rank < spec.world; ++rank) {
        std::vector<std::pair<int, int>> order, expected;  // band, chunk
        for (std::int64_t i = 0; i < plan.tiles(); ++i) {
          const Tile tile = plan.tile(rank, i);
          ASSERT_EQ(tile.band == rank, i >= plan.peer_tiles(rank));
          const std::pair part{tile.band, tile.chunk};
          if (order.empty() || order.back() != part) order.push_back(part);
        }
        for (const bool own : {false, true}) {
          for (int chunk = 0; chunk < spec.chunks; ++chunk) {
            for (int step = 1; step <= spec.world; ++step) {
              const int owner = (rank + step) % spec.world;
              if ((owner == rank) == own && chunk < plan.chunks(owner)) {
                expected.emplace_back(owner, chunk);
              }
            }
          }
        }
        ASSERT_EQ(order, expected) << "M=" << rows << " rank=" << rank;
      }
    }
  });
}

TEST(Plan, OwnTilesBetweenComeAfterEveryPeersTileOfTheirChunk) {
  for_each_small_spec([](PlanSpec spec) {
    for (int lag : {0, 1, 5, 66}) {
      spec.own_lag = lag;
      for (std::int64_t rows : {1, 8, 64, 65, 130, 300}) {
        const CallPlan plan(spec, rows);
        for (int rank = 0; rank < spec.world; ++rank) {
          int last_own = -1;  // chunk
          std::int64_t own_before = 0, first_own = 0;
          for (std::int64_t i = 0; i < plan.tiles(); ++i) {
            const Tile tile = plan.tile(rank, i);
            if (tile.band == rank) {
              ASSERT_GE(tile.chunk, last_own);
              last_own = tile.chunk;
              if (own_before++ == 0) first_own = i;
            } else {
              ASSERT_GT(tile.chunk, last_own)
                  << "M=" << rows << " rank=" << rank << " tile " << i << " lag " << lag;
            }
          }
          ASSERT_EQ(plan.tiles() - own_before, plan.peer_tiles(rank));
          if (own_before > 0) {
            ASSERT_EQ(first_own, std::min(plan.order().mix(rank).ahead + spec.world - 1,
                                          plan.peer_tiles(rank)))
                << "M=" << rows << " rank=" << rank;
          }
        }
      }
    }
  });
}

TEST(Plan, OwnTilesBetweenAreOneOfEachWTiles) {
  PlanSpec spec = small_spec(4, 4, 32);
  spec.own_lag = 0;
  const CallPlan plan(spec, spec.max_rows);
  const std::int64_t begin = plan.order().mix(0).ahead;
  ASSERT_LT(begin, plan.peer_tiles(0));
  for (std::int64_t i = begin; i < plan.peer_tiles(0); ++i) {
    EXPECT_EQ(plan.tile(0, i).band == 0, (i - begin) % 4 == 3) << i;
  }
}

TEST(Plan, AWalkInStepsVisitsTheSameTiles) {
  for_each_small_spec([](PlanSpec spec) {
    for (int lag : {-1, 0, 5}) {
      spec.own_lag = lag;
      for (std::int64_t rows : {0, 1, 8, 65, 130, 300}) {
        const CallPlan plan(spec, rows);
        for (int rank = 0; rank < spec.world; ++rank) {
          for (std::int64_t step : {1, 2, 7, 66}) {
            const auto mix = plan.order().mix(rank);
            BasicTileWalk<std::int64_t> walk(plan.order(), mix, rank);
            for (std::int64_t index = step / 2; index < plan.tiles(); index += step) {
              const Tile want = plan.tile(rank, index), got = walk.tile(index);
              ASSERT_TRUE(got.band == want.band && got.chunk == want.chunk &&
                          got.rows == want.rows && got.cols == want.cols)
                  << "M=" << rows << " rank=" << rank << " tile " << index;
            }
          }
        }
      }
    }
  });
}

TEST(Plan, NoTwoRanksStartWithTheSameReceiver) {
  const CallPlan plan(small_spec(8, 4, 8), 300);
  std::set<int> first;
  for (int rank = 0; rank < 8; ++rank) first.insert(plan.tile(rank, 0).band);
  EXPECT_EQ(first.size(), 8u);
}

TEST(Plan, WindowHoldsEveryBandOfEveryCallUpToTheCapacity) {
  for_each_small_spec([](const PlanSpec& base) {
    for (std::int64_t max_rows : {1, 8, 9, 63, 64, 100, 257, 300}) {
      PlanSpec spec = base;
      spec.max_rows = max_rows;
      const WindowLayout window = plan_window(spec, 100);
      for (std::int64_t rows = 0; rows <= max_rows; ++rows) {
        const CallPlan plan(spec, rows);
        for (int owner = 0; owner < spec.world; ++owner) {
          ASSERT_LE(plan.band(owner).size(), window.band_rows) << max_rows << " M=" << rows;
        }
      }
    }
  });
}

TEST(Plan, WindowRegionsFollowEachOtherWithoutOverlap) {
  for (int world = 1; world <= 8; ++world) {
    for (Wire wire : {Wire::kBf16, Wire::kFp8}) {
      for (Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
        PlanSpec spec = small_spec(world, 4, 16);
        spec.wire = wire;
        spec.transport = transport;
        spec.gather_scale = GatherScale::kPerRowBlock;
        const WindowLayout w = plan_window(spec, 5000);
        const std::int64_t partials = (world - 1) * w.band_rows * spec.cols * 2;
        EXPECT_EQ(w.control, 0);
        EXPECT_GE(w.received - w.control, 5000);
        EXPECT_GE(w.staging - w.received, partials);
        EXPECT_GE(w.output - w.staging, transport == Transport::kCopyEngine ? partials : 0);
        EXPECT_GE(w.gather_codes - w.output, spec.slots * spec.max_rows * spec.cols * 2);
        const bool fp8 = wire == Wire::kFp8 && world > 1;
        EXPECT_GE(w.gather_scales - w.gather_codes, fp8 ? spec.max_rows * spec.cols : 0);
        EXPECT_GE(w.bytes - w.gather_scales, fp8 ? spec.max_rows * 2 * 4 : 0);
        EXPECT_EQ(w.bytes % 4096, 0);
      }
    }
  }
}

TEST(Plan, EveryPeerHasItsOwnRoomForPartials) {
  for (int world = 2; world <= 8; ++world) {
    const PlanSpec spec = small_spec(world, 4, 16);
    const WindowLayout w = plan_window(spec, 64);
    for (int self = 0; self < world; ++self) {
      std::set<std::int64_t> places;
      for (int peer = 0; peer < world; ++peer) {
        if (peer != self) places.insert(w.received_row(self, peer, 0));
      }
      ASSERT_EQ(places.size(), static_cast<std::size_t>(world - 1));
      EXPECT_EQ(*places.begin(), w.received);
      EXPECT_LE(*places.rbegin() + w.band_rows * spec.cols * 2, w.staging);
    }
  }
}

TEST(Plan, WhatTellsOfPackedPartialsHasItsPlaceForEveryBlockAndPeer) {
  PlanSpec spec{.max_rows = 1000, .cols = 192, .depth = 128, .world = 3};
  WindowLayout w = plan_window(spec, 64);
  EXPECT_FALSE(spec.packs_partials());
  EXPECT_EQ(w.packing_heads, w.staging);
  spec.packing_head_bytes = 16;
  EXPECT_EQ(plan_window(spec, 64).bytes, w.bytes);
  spec.packed_chunks = 1;
  spec.min_tile_rows = 64;
  w = plan_window(spec, 64);
  EXPECT_EQ(w.packing_heads_bytes, w.band_rows / 64 * 3 * 16);
  for (int self = 0; self < 3; ++self) {
    const std::int64_t next = w.packing_heads_of(self, (self + 1) % 3);
    EXPECT_EQ(next, w.packing_heads);
    EXPECT_EQ(w.packing_heads_of(self, (self + 2) % 3), next + w.packing_heads_bytes);
  }
  EXPECT_GE(w.packing_heads, w.received + 2 * w.band_rows * 192 * 2);
  EXPECT_GE(w.staging, w.packing_heads + 2 * w.packing_heads_bytes);
}

PlanSpec packed_spec(std::int64_t max_rows, int world, std::int64_t height) {
  return {.max_rows = max_rows,
          .cols = 192,
          .depth = 128,
          .world = world,
          .tile_rows = height,
          .min_tile_rows = height,
          .packed_chunks = 4,
          .packing_head_bytes = 16};
}

// Blocks are counted from their band's first row; the rest of a band, less than a block's rows,
// lies behind them, row by row.
TEST(Plan, EveryWholeBlockOfAPartialHasItsPlace) {
  for (int world = 2; world <= 8; ++world) {
    for (std::int64_t height : {64, 128, 192}) {
      for (std::int64_t max_rows : {1, 63, 64, 65, 700, 1000, 4681}) {
        const PlanSpec spec = packed_spec(max_rows, world, height);
        const WindowLayout w = plan_window(spec, 0);
        for (std::int64_t rows = 1; rows <= max_rows; rows += rows < 300 ? 1 : 61) {
          const CallPlan plan(spec, rows);
          for (int owner = 0; owner < world; ++owner) {
            const Range band = plan.band(owner);
            const std::int64_t blocks = band.size() / 64 * (192 / 64);
            ASSERT_LE(blocks * 16, w.packing_heads_bytes) << max_rows << " M=" << rows;
            ASSERT_TRUE(band.begin % 64 == 0 || band.size() == 0);
          }
          ASSERT_EQ(plan.tile_rows() % 64, 0);
        }
      }
    }
  }
}

TEST(Plan, PackedPartialsTakeThreeQuartersOfTheBytesAndWhatTellsOfThem) {
  PlanSpec spec = packed_spec(1000, 2, 64);
  const CallPlan packed(spec, 1000);
  spec.packed_chunks = 3;
  const CallPlan partly(spec, 1000);
  spec.packed_chunks = 0;
  const CallPlan plain(spec, 1000);
  // Of 488 rows 40 are no whole block; the other band has 512.
  EXPECT_EQ(packed.band(0).size(), 512);
  EXPECT_EQ(packed.scatter_bytes(0), 7 * 3 * (64 * 64 * 3 / 2 + 16) + 40 * 192 * 2);
  EXPECT_EQ(packed.scatter_bytes(1), 8 * 3 * (64 * 64 * 3 / 2 + 16));
  EXPECT_EQ(plain.scatter_bytes(1), 512 * 192 * 2);
  // Both bands have four chunks of two blocks' rows; of one those 40 are the last's second.
  EXPECT_EQ(partly.scatter_bytes(0), 6 * 3 * (64 * 64 * 3 / 2 + 16) + (64 + 40) * 192 * 2);
  EXPECT_EQ(partly.scatter_bytes(1), 6 * 3 * (64 * 64 * 3 / 2 + 16) + 128 * 192 * 2);
  EXPECT_EQ(packed.gather_bytes(0), plain.gather_bytes(0));
  // A band of one tile row has one chunk.
  spec.packed_chunks = 3;
  EXPECT_EQ(CallPlan(spec, 100).scatter_bytes(1), 3 * (64 * 64 * 3 / 2 + 16));
  EXPECT_EQ(CallPlan(spec, 100).scatter_bytes(0), 36 * 192 * 2);
}

TEST(Plan, PackedPartialsWantWholeBlocksAndStores) {
  PlanSpec spec = packed_spec(1000, 2, 64);
  EXPECT_EQ(why_not_expressible(spec), "");
  spec.transport = Transport::kCopyEngine;
  EXPECT_EQ(why_not_expressible(spec), "transport copy_engine: packed partials want direct");
  spec.cols = 272;
  EXPECT_EQ(why_not_expressible(spec),
            "N=272 columns in tiles of at least 64 rows: packed partials want multiples of 64");
  spec.cols = 256;
  spec.tile_rows = spec.min_tile_rows = 32;
  EXPECT_EQ(why_not_expressible(spec),
            "N=256 columns in tiles of at least 32 rows: packed partials want multiples of 64");
  spec = packed_spec(1000, 2, 64);
  spec.packing_head_bytes = 0;
  EXPECT_EQ(why_not_expressible(spec),
            "packing_head_bytes=0: packed partials want some for each block");
  for (int chunks : {-1, 5}) {
    spec = packed_spec(1000, 2, 64);
    spec.packed_chunks = chunks;
    EXPECT_EQ(why_not_expressible(spec), "packed_chunks=" + std::to_string(chunks) +
                                             ": must be from 0 to the 4 chunks of a band");
  }
}

TEST(Plan, O01_OneOutputSlotOf16384By7168Is224MiB) {
  PlanSpec spec{.max_rows = 16384, .cols = 7168, .depth = 2048, .world = 4};
  const WindowLayout w = plan_window(spec, 4096);
  EXPECT_EQ(w.gather_codes - w.output, 2 * (std::int64_t{224} << 20));
  EXPECT_EQ(w.staging - w.received, std::int64_t{168} << 20);  // of three peers
}

TEST(Plan, M03_SizesPass32Bits) {
  PlanSpec spec{.max_rows = 299594, .cols = 7168, .depth = 128, .world = 2};
  for (std::int64_t rows : {299593, 299594}) {
    const CallPlan plan(spec, rows);
    EXPECT_EQ(plan.tile(0, plan.tiles() - 1).rows.end, plan.band(0).end);
    EXPECT_EQ(plan.band(1).end, rows);
    EXPECT_EQ(plan.scatter_bytes(0) + plan.scatter_bytes(1), rows * 7168 * 2);
    EXPECT_EQ(plan.gather_bytes(0) + plan.gather_bytes(1), rows * 7168 * 2);
  }
  EXPECT_GT(plan_window(spec, 4096).bytes, std::int64_t{1} << 33);
}

TEST(Plan, WhatCannotBeExpressedIsNamedWithTheRightValue) {
  const PlanSpec good{.max_rows = 64, .cols = 128, .depth = 128, .world = 2};
  EXPECT_EQ(why_not_expressible(good), "");
  const auto why = [&](auto change) {
    PlanSpec spec = good;
    change(spec);
    const std::string text = why_not_expressible(spec);
    EXPECT_THROW(plan_window(spec, 0), Error);
    EXPECT_THROW(CallPlan(spec, 0), Error);
    return text;
  };
  EXPECT_THAT(why([](auto& s) { s.cols = 100; }), HasSubstr("N=100"));
  EXPECT_THAT(why([](auto& s) { s.cols = 0; }), HasSubstr("multiple of 8"));
  EXPECT_THAT(why([](auto& s) { s.depth = 192; }), HasSubstr("K=192"));
  EXPECT_THAT(why([](auto& s) { s.world = 0; }), HasSubstr("W=0"));
  EXPECT_THAT(why([](auto& s) { s.world = 65; }), HasSubstr("1..64"));
  EXPECT_THAT(why([](auto& s) { s.chunks = 0; }), HasSubstr("chunks=0"));
  EXPECT_THAT(why([](auto& s) { s.slots = 0; }), HasSubstr("slots=0"));
  EXPECT_THAT(why([](auto& s) { s.tile_rows = 48; }), HasSubstr("tile_rows=48"));
  EXPECT_THAT(why([](auto& s) { s.tile_rows = 96; }), HasSubstr("doubled"));
  EXPECT_THAT(why([](auto& s) { s.min_tile_rows = 512; }), HasSubstr("min_tile_rows=512"));
  EXPECT_THAT(why([](auto& s) { s.tile_cols = 64; }), HasSubstr("tile_cols=64"));
  EXPECT_THAT(why([](auto& s) { s.max_rows = 0; }), HasSubstr("max_rows=0"));
  EXPECT_THAT(why([](auto& s) { s.max_rows = std::int64_t{1} << 60; }), HasSubstr("62-bit"));
}

TEST(Plan, O02_RowsBeyondTheCapacityNameBothNumbers) {
  PlanSpec spec{.max_rows = 4681, .cols = 7168, .depth = 2048, .world = 2};
  try {
    CallPlan plan(spec, 16384);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(e.what(), HasSubstr("16384"));
    EXPECT_THAT(e.what(), HasSubstr("4681"));
  }
  EXPECT_THROW(CallPlan(spec, -1), Error);
}

TEST(Plan, C01_OptionsAreTakenByTheirExactNamesOnly) {
  EXPECT_EQ(parse_wire("fp8"), Wire::kFp8);
  EXPECT_EQ(parse_transport("copy_engine"), Transport::kCopyEngine);
  EXPECT_EQ(parse_gather_scale("block"), GatherScale::kPerRowBlock);
  for (Wire w : {Wire::kBf16, Wire::kFp8}) EXPECT_EQ(parse_wire(wire_name(w)), w);
  for (const char* text : {"FP8", "", "fp8 ", "bf"}) {
    try {
      parse_wire(text);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("'bf16', 'fp8'"));
    }
  }
  EXPECT_THROW(parse_transport("sla"), Error);
  EXPECT_THROW(parse_gather_scale("column"), Error);
}

TEST(Plan, BytesOnTheWire) {
  PlanSpec spec{.max_rows = 16384, .cols = 7168, .depth = 2048, .world = 2};
  EXPECT_EQ(CallPlan(spec, 16384).scatter_bytes(0), 8192LL * 7168 * 2);
  EXPECT_EQ(CallPlan(spec, 16384).gather_bytes(1), 8192LL * 7168 * 2);
  spec.wire = Wire::kFp8;
  EXPECT_EQ(CallPlan(spec, 16384).gather_bytes(1), 8192LL * (7168 + 56 * 4));
  spec.gather_scale = GatherScale::kPerRow;
  EXPECT_EQ(CallPlan(spec, 16384).gather_bytes(1), 8192LL * (7168 + 4));
}

TEST(Plan, ScalesOfATileLieSideBySideWhereTheEngineWantsIt) {
  PlanSpec spec{.max_rows = 1000, .cols = 264, .depth = 128, .world = 2, .wire = Wire::kFp8};
  WindowLayout w = plan_window(spec, 0);
  EXPECT_EQ(w.scale_row_stride, 3);
  EXPECT_EQ(w.scale_block_stride, 1);
  spec.block_major_scales = true;
  w = plan_window(spec, 0);
  EXPECT_EQ(w.scale_row_stride, 1);
  EXPECT_EQ(w.scale_block_stride, 1024);  // whole pieces of 64 rows
  EXPECT_GE(w.bytes - w.gather_scales, 3 * 1024 * 4);
}

}  // namespace
}  // namespace rowband
