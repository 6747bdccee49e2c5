// Bands, chunks and tile order as plain arithmetic that compiles for the host and, under nvcc, for
// the device: a GPU kernel walks the very order that the host plans.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define ROWBAND_HOST_DEVICE __host__ __device__
#else
#define ROWBAND_HOST_DEVICE
#endif

namespace rowband {

template <typename Int>
struct BasicRange {
  Int begin = 0;
  Int end = 0;
  ROWBAND_HOST_DEVICE constexpr Int size() const { return end - begin; }
  friend bool operator==(const BasicRange&, const BasicRange&) = default;
};
using Range = BasicRange<std::int64_t>;

// `total` things dealt over `parts`: sizes differ by at most one, larger ones first.
template <typename Int>
struct BasicDeal {
  Int size = 0;    // of a smaller part
  Int larger = 0;  // parts, by one

  constexpr BasicDeal() = default;
  constexpr BasicDeal(Int total, Int parts) : size(total / parts), larger(total % parts) {}

  ROWBAND_HOST_DEVICE constexpr BasicRange<Int> part(Int index) const {
    const Int begin = index * size + (index < larger ? index : larger);
    return {begin, begin + size + (index < larger ? 1 : 0)};
  }
};

// The unit of GEMM work.
template <typename Int>
struct BasicTile {
  int band = 0;          // the owner's rank
  int chunk = 0;         // within the band
  BasicRange<Int> rows;  // of the whole output
  BasicRange<Int> cols;
};
using Tile = BasicTile<std::int64_t>;

// How the tiles of its peers' bands and of its own come together in a rank's order: once enough of
// the peers' are ahead, an own one follows each W - 1 of theirs.
template <typename Int>
struct BasicTileMix {
  Int peers = 0;  // tiles
  Int own = 0;
  Int ahead = 0;  // of the peers' before the first own one
  std::int32_t world = 1;

  // Where tile `index` in [0, peers + own) stands in its list.
  struct Place {
    bool own;
    Int index;
  };
  ROWBAND_HOST_DEVICE constexpr Place place(Int index) const {
    if (index < ahead) return {false, index};
    const Int beyond = index - ahead, rounds = beyond / world;
    const Int own_before = rounds < own ? rounds : own;
    if (index - own_before >= peers) return {true, index - peers};
    const bool turn = rounds < own && beyond - rounds * world == world - 1;
    return {turn, turn ? own_before : index - own_before};
  }
};

// The order of one call. Ranges of tiles count whole tile rows; the last one may be short.
template <typename Int>
struct BasicTileOrder {
  using Range = BasicRange<Int>;
  using Tile = BasicTile<Int>;

  Int rows = 0;  // M
  Int cols = 0;  // N
  Int tile_rows = 1;
  Int tile_cols = 1;
  std::int32_t world = 1;   // W
  std::int32_t chunks = 1;  // per band at most
  // Negative: the own band last. Else own tiles come between the peers', those of a chunk so many
  // tiles after the peers' of that chunk.
  std::int32_t own_lag = -1;
  // Kept, since devices divide slowly. Of the whole output:
  Int row_tiles = 0;
  Int col_tiles = 0;
  // Tile rows over the bands, and over the chunks of a smaller band and of one of a tile row more;
  // where there are fewer tile rows than chunks, the first chunks get one each.
  BasicDeal<Int> bands = {};
  BasicDeal<Int> smaller_band = {}, larger_band = {};

  constexpr BasicTileOrder() = default;
  constexpr BasicTileOrder(Int m, Int n, Int height, Int width, int ranks, int most_chunks,
                           int lag = -1)
      : rows(m),
        cols(n),
        tile_rows(height),
        tile_cols(width),
        world(ranks),
        chunks(most_chunks),
        own_lag(lag),
        row_tiles((m + height - 1) / height),
        col_tiles((n + width - 1) / width),
        bands(row_tiles, ranks),
        smaller_band(bands.size, most_chunks),
        larger_band(bands.size + 1, most_chunks) {}

  ROWBAND_HOST_DEVICE constexpr Int tiles() const { return row_tiles * col_tiles; }

  ROWBAND_HOST_DEVICE constexpr Range band_tiles(int owner) const { return bands.part(owner); }
  ROWBAND_HOST_DEVICE constexpr int chunk_count(int owner) const {
    const Int size = band_tiles(owner).size();
    return static_cast<int>(size < chunks ? size : chunks);
  }
  ROWBAND_HOST_DEVICE constexpr Range chunk_tiles(int owner, int index) const {
    const Range part = (owner < bands.larger ? larger_band : smaller_band).part(index);
    const Int begin = band_tiles(owner).begin;
    return {begin + part.begin, begin + part.end};
  }
  ROWBAND_HOST_DEVICE constexpr Int tiles_in_chunk(int owner, int index) const {
    return chunk_tiles(owner, index).size() * col_tiles;
  }
  ROWBAND_HOST_DEVICE constexpr Range rows_of(Range tiles) const {
    const Int begin = tiles.begin * tile_rows, end = tiles.end * tile_rows;
    return {begin < rows ? begin : rows, end < rows ? end : rows};
  }

  // The bands in the order in which `rank` takes to them: rank + 1, rank + 2, ..., its own last.
  ROWBAND_HOST_DEVICE constexpr int band_at(int rank, int position) const {
    const int band = rank + 1 + position;
    return band < world ? band : band - world;
  }
  // A rank computes the tiles of its peers' bands before its own, or, with own_lag >= 0, so many of
  // them that no own tile of a chunk comes before the peers' tiles of that chunk.
  constexpr BasicTileMix<Int> mix(int rank) const {
    const Int own = band_tiles(rank).size() * col_tiles, peers = tiles() - own;
    if (own_lag < 0) return {peers, own, peers, world};
    const Int largest_band = (row_tiles + world - 1) / world;
    const Int largest_chunk = (largest_band + chunks - 1) / chunks;
    const Int ahead = (world - 1) * largest_chunk * col_tiles + own_lag;
    return {peers, own, ahead < peers ? ahead : peers, world};
  }

  // Tile `index` of a rank's order, from scratch; an empty tile beyond.
  constexpr Tile tile(int rank, Int index) const;
};

// Walks a rank's tiles, as workers that share them do.
template <typename Int>
class BasicTileWalk {
 public:
  // `mix` is the rank's; all three must outlive the walk.
  ROWBAND_HOST_DEVICE constexpr BasicTileWalk(const BasicTileOrder<Int>& order,
                                              const BasicTileMix<Int>& mix, int rank)
      : order_(order), mix_(mix), rank_(rank) {}

  // Tile `index`, in [0, tiles()) and not before the last one asked for. Of each list chunk after
  // chunk, of each chunk band after band; in a band's chunk column by column with the row tiles
  // innermost, so that a weight panel is used while warm.
  ROWBAND_HOST_DEVICE constexpr BasicTile<Int> tile(Int index) {
    const auto place = mix_.place(index);
    return place.own ? find(own_, place.index, order_.world - 1, 1)
                     : find(peers_, place.index, 0, order_.world - 1);
  }

 private:
  // In a list of tiles: a chunk, of which of the list's bands, and how many tiles come before it.
  struct Cursor {
    int chunk = 0, band = 0;
    Int before = 0;
  };

  // In the list of `bands` bands from `position` on.
  ROWBAND_HOST_DEVICE constexpr BasicTile<Int> find(Cursor& cursor, Int index, int position,
                                                    int bands) const {
    for (;;) {
      const int band = order_.band_at(rank_, position + cursor.band);
      if (cursor.chunk < order_.chunk_count(band)) {
        const auto rows = order_.chunk_tiles(band, cursor.chunk);
        const Int size = rows.size() * order_.col_tiles, at = index - cursor.before;
        if (at < size) {
          const Int col_tile = at / rows.size();
          const Int row_tile = rows.begin + (at - col_tile * rows.size());
          const Int col = col_tile * order_.tile_cols, col_end = col + order_.tile_cols;
          return {band,
                  cursor.chunk,
                  order_.rows_of({row_tile, row_tile + 1}),
                  {col, col_end < order_.cols ? col_end : order_.cols}};
        }
        cursor.before += size;
      }
      if (++cursor.band == bands) {
        cursor.band = 0;
        ++cursor.chunk;
      }
    }
  }

  const BasicTileOrder<Int>& order_;
  const BasicTileMix<Int>& mix_;
  int rank_;
  Cursor peers_, own_;
};

template <typename Int>
constexpr BasicTile<Int> BasicTileOrder<Int>::tile(int rank, Int index) const {
  if (index >= tiles()) return {};
  const auto mix_of_rank = mix(rank);
  return BasicTileWalk<Int>(*this, mix_of_rank, rank).tile(index);
}

// Devices divide 32-bit numbers much faster; the engine checks that M fits.
using TileOrder = BasicTileOrder<std::int64_t>;
using DeviceTileOrder = BasicTileOrder<std::int32_t>;
using DeviceTileMix = BasicTileMix<std::int32_t>;
using DeviceTileWalk = BasicTileWalk<std::int32_t>;

}  // namespace rowband
