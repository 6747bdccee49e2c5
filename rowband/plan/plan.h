// The plan of a call: bands, chunks, tile order, window layout. Pure arithmetic: no device, no
// engine, no allocation per call. Every engine takes every offset, count and order from here.
//
//   rows of the output   | band of rank 0 | band of rank 1 | ... | band of rank W-1 |
//   a band               | chunk 0 | chunk 1 | ...            (what travels and is signalled)
//   a chunk              tile rows x tile columns             (what a worker computes)
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "rowband/plan/tile_order.h"

namespace rowband {

enum class Wire { kBf16, kFp8 };                // the gather leg's format; scatter is always bf16
enum class Transport { kCopyEngine, kDirect };  // who moves the bytes
enum class GatherScale { kPerRow, kPerRowBlock };  // fp8 wire: one fp32 scale per row, or per 1x128

std::string_view wire_name(Wire wire);                  // "bf16", "fp8"
std::string_view transport_name(Transport transport);   // "copy_engine", "direct"
std::string_view gather_scale_name(GatherScale scale);  // "row", "block"
// Throw Error(kInvalidArgument) naming `text` and listing the legal values; only exact names are
// taken.
Wire parse_wire(std::string_view text);
Transport parse_transport(std::string_view text);
GatherScale parse_gather_scale(std::string_view text);

// What a call is expected to take, for an engine whose workers compute a tile each at a time:
// measured on its hardware, and only as good as choosing between tile heights needs.
struct TileCost {
  int workers = 0;     // of a rank; 0: no such engine
  double tile_us = 0;  // of a tile, whatever its height and depth
  // Of a tile's depth block, by the tile's height: min_tile_rows, twice or three times as many.
  std::array<double, 3> block_us{};
  double link_bytes_per_us = 1;  // that leave a rank
  double encode_us = 0;          // fp8 wire: of each min_tile_rows of an own tile
};

// What is fixed when an op is made; equal on all ranks.
struct PlanSpec {
  std::int64_t max_rows = 0;  // capacity: a call has 0 <= M <= max_rows
  std::int64_t cols = 0;      // N
  std::int64_t depth = 0;     // K of one rank
  int world = 1;              // W
  Wire wire = Wire::kBf16;
  Transport transport = Transport::kDirect;
  GatherScale gather_scale = GatherScale::kPerRowBlock;
  int chunks = 4;  // per band at most; a band with fewer tile rows has fewer chunks
  int slots = 2;   // output slots: a result stays untouched through the next slots - 1 calls
  // Tile heights a call may use: tile_rows, halved until min_tile_rows; where the cost is known,
  // all multiples of min_tile_rows up to tile_rows, three at most.
  std::int64_t tile_rows = 256;
  std::int64_t min_tile_rows = 32;
  TileCost cost = {};
  std::int64_t tile_cols = 256;
  int own_lag = -1;  // see TileOrder
  // fp8 wire: scales lie [block][row] in the window, so that a tile's are neighbours; else
  // [row][block].
  bool block_major_scales = false;
  // Under `direct` the partials of a band's first chunks, so many, travel packed, without loss, by
  // blocks of 64 rows and columns (N is a multiple then, and the tiles' heights are) in 12 bits a
  // value of the engine's own format, and so many bytes beside each block tell how.
  int packed_chunks = 0;
  std::int64_t packing_head_bytes = 0;
  bool packs_partials() const { return packed_chunks > 0; }
};

inline constexpr std::int64_t kPackedBlock = 64;

// "" when calls of this spec can be planned; otherwise why not, with the values that would be
// right.
std::string why_not_expressible(const PlanSpec& spec);

// Offsets in bytes within one rank's part of the symmetric window; the same for every M.
struct WindowLayout {
  std::int64_t band_rows = 0;      // capacity of a band
  std::int64_t control = 0;        // control words: flags, call cards, poison
  std::int64_t received = 0;       // [world - 1][band_rows][cols] bf16: partials here, by peer slot
  std::int64_t packing_heads = 0;  // [world - 1][blocks of band_rows][blocks of cols]; or empty
  std::int64_t staging = 0;        // the same shape, by destination; empty under `direct`
  std::int64_t output = 0;         // [slots][max_rows][cols] bf16
  std::int64_t gather_codes = 0;   // fp8 wire: [max_rows][cols] e4m3; else empty
  std::int64_t gather_scales = 0;  // fp8 wire: fp32, one place for each row and block; else empty
  std::int64_t scales_per_row = 0;
  std::int64_t scale_row_stride = 0;  // in scales
  std::int64_t scale_block_stride = 0;
  std::int64_t bytes = 0;  // the whole part

  // Row `row_in_band` of the partial that `self` got from (in staging: keeps for) `peer`.
  std::int64_t received_row(int self, int peer, std::int64_t row_in_band) const;
  std::int64_t staging_row(int self, int peer, std::int64_t row_in_band) const;

  // The first of those that tell of the partial that `self` got from `peer`.
  std::int64_t packing_heads_of(int self, int peer) const;

  // What the layout was made for.
  int world = 1;
  std::int64_t cols = 0;
  std::int64_t packing_heads_bytes = 0;  // of one partial
};

// Where `peer` stands among the peers of `self`: rank + 1 is 0, rank + 2 is 1, ...
constexpr int peer_slot(int self, int peer, int world) { return (peer - self - 1 + world) % world; }

// `control_bytes` is what the engine wants for its control words. Throws Error(kInvalidArgument)
// with why_not_expressible(spec).
WindowLayout plan_window(const PlanSpec& spec, std::int64_t control_bytes);

// The plan of one call with `rows` = M, the same on every rank.
class CallPlan {
 public:
  // Picks the tile height by pick_tile_rows. Throws Error(kInvalidArgument) naming rows and
  // max_rows.
  CallPlan(const PlanSpec& spec, std::int64_t rows);

  const TileOrder& order() const { return order_; }
  std::int64_t rows() const { return order_.rows; }
  std::int64_t tile_rows() const { return order_.tile_rows; }
  std::int64_t row_tiles() const { return order_.row_tiles; }  // of the whole output
  std::int64_t col_tiles() const { return order_.col_tiles; }

  // Rows; the band may be empty, and has no chunks then.
  Range band(int owner) const { return order_.rows_of(order_.band_tiles(owner)); }
  int chunks(int owner) const { return order_.chunk_count(owner); }
  Range chunk(int owner, int index) const {
    return order_.rows_of(order_.chunk_tiles(owner, index));
  }
  std::int64_t tiles_in_chunk(int owner, int index) const {
    return order_.tiles_in_chunk(owner, index);
  }

  // See TileOrder.
  int band_at(int rank, int position) const { return order_.band_at(rank, position); }
  std::int64_t tiles() const { return order_.tiles(); }
  Tile tile(int rank, std::int64_t index) const;  // throws beyond tiles()
  // How many of `rank`'s tiles belong to peers: the first ones, unless own tiles come between.
  std::int64_t peer_tiles(int rank) const { return order_.mix(rank).peers; }

  // Bytes that leave `rank` on each leg, to all peers together; of packed partials as many as there
  // are at least, since a block that cannot be packed travels as it is.
  std::int64_t scatter_bytes(int rank) const;
  std::int64_t gather_bytes(int rank) const;

 private:
  PlanSpec spec_;
  TileOrder order_;
};

// Of the heights that calls of this spec may use, from tile_rows downwards, the one below `height`;
// 0 below the least.
std::int64_t next_height(const PlanSpec& spec, std::int64_t height);

// Where the cost is known, microseconds: the first tile (copy_engine: chunk), while which nothing
// travels, then all tiles or all transfers, whichever take longer, then the last results: those of
// a round of tiles (of a chunk) are encoded and travel when all products are done.
double expected_us(const PlanSpec& spec, std::int64_t rows, std::int64_t tile_rows);

// Where the cost is known, the height of least expected time, of equals the lowest. Else the
// largest height that still gives every rank a tile row, or the smallest: tall tiles reuse the
// weights, but a band of its own for every rank spreads the reduce and the gather.
std::int64_t pick_tile_rows(const PlanSpec& spec, std::int64_t rows);

}  // namespace rowband
