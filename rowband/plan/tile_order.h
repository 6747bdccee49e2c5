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

// The unit of GEMM work.
template <typename Int>
struct BasicTile {
  int band = 0;          // the owner's rank
  int chunk = 0;         // within the band
  BasicRange<Int> rows;  // of the whole output
  BasicRange<Int> cols;
};
using Tile = BasicTile<std::int64_t>;

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

  ROWBAND_HOST_DEVICE constexpr Int row_tiles() const { return (rows + tile_rows - 1) / tile_rows; }
  ROWBAND_HOST_DEVICE constexpr Int col_tiles() const { return (cols + tile_cols - 1) / tile_cols; }
  ROWBAND_HOST_DEVICE constexpr Int tiles() const { return row_tiles() * col_tiles(); }

  // Part `index` of `total` dealt over `parts`: sizes differ by at most one, larger ones first.
  ROWBAND_HOST_DEVICE static constexpr Range deal(Int total, Int parts, Int index) {
    const Int base = total / parts, extra = total % parts;
    const Int begin = index * base + (index < extra ? index : extra);
    return {begin, begin + base + (index < extra ? 1 : 0)};
  }

  ROWBAND_HOST_DEVICE constexpr Range band_tiles(int owner) const {
    return deal(row_tiles(), world, owner);
  }
  ROWBAND_HOST_DEVICE constexpr int chunk_count(int owner) const {
    const Int size = band_tiles(owner).size();
    return static_cast<int>(size < chunks ? size : chunks);
  }
  ROWBAND_HOST_DEVICE constexpr Range chunk_tiles(int owner, int index) const {
    const Range band = band_tiles(owner);
    const Range part = deal(band.size(), chunk_count(owner), index);
    return {band.begin + part.begin, band.begin + part.end};
  }
  ROWBAND_HOST_DEVICE constexpr Int tiles_in_chunk(int owner, int index) const {
    return chunk_tiles(owner, index).size() * col_tiles();
  }
  ROWBAND_HOST_DEVICE constexpr Range rows_of(Range tiles) const {
    const Int begin = tiles.begin * tile_rows, end = tiles.end * tile_rows;
    return {begin < rows ? begin : rows, end < rows ? end : rows};
  }

  // The bands in the order `rank` computes them: rank + 1, rank + 2, ..., its own last.
  ROWBAND_HOST_DEVICE constexpr int band_at(int rank, int position) const {
    return (rank + 1 + position) % world;
  }

  // Tile `index` in [0, tiles()): bands by band_at, chunks ascending, then column by column with
  // the chunk's row tiles innermost, so that a weight panel is used while warm. An empty tile
  // beyond.
  ROWBAND_HOST_DEVICE constexpr Tile tile(int rank, Int index) const {
    for (int position = 0; position < world; ++position) {
      const int owner = band_at(rank, position);
      const Int band_size = band_tiles(owner).size() * col_tiles();
      if (index >= band_size) {
        index -= band_size;
        continue;
      }
      int chunk = 0;
      for (; index >= tiles_in_chunk(owner, chunk); ++chunk) index -= tiles_in_chunk(owner, chunk);
      const Range part = chunk_tiles(owner, chunk);
      const Int row_tile = part.begin + index % part.size();
      const Int col = index / part.size() * tile_cols;
      return {owner,
              chunk,
              rows_of({row_tile, row_tile + 1}),
              {col, col + tile_cols < cols ? col + tile_cols : cols}};
    }
    return {};
  }
};

// Walks one rank's tiles in steps, as workers that share them do, at the cost of one division a
// step: TileOrder::tile finds any tile from scratch, which takes dozens.
template <typename Int>
class BasicTileWalk {
 public:
  using Range = BasicRange<Int>;

  // At tile `first`.
  ROWBAND_HOST_DEVICE constexpr BasicTileWalk(const BasicTileOrder<Int>& order, int rank, Int first)
      : order_(order), rank_(rank), left_(order.tiles()) {
    if (left_ > 0) enter_band();
    advance(first);
  }

  ROWBAND_HOST_DEVICE constexpr bool done() const { return left_ <= 0; }

  ROWBAND_HOST_DEVICE constexpr void advance(Int step) {
    left_ -= step;
    if (done()) return;
    index_ += step;
    while (index_ >= size_) {
      index_ -= size_;
      if (++chunk_ == chunks_) {
        ++position_;
        enter_band();
      } else {
        enter_chunk();
      }
    }
  }

  // Not at the end.
  ROWBAND_HOST_DEVICE constexpr BasicTile<Int> tile() const {
    const Int col_tile = index_ / part_.size();
    const Int row_tile = part_.begin + (index_ - col_tile * part_.size());
    const Int col = col_tile * order_.tile_cols, col_end = col + order_.tile_cols;
    return {band_,
            chunk_,
            order_.rows_of({row_tile, row_tile + 1}),
            {col, col_end < order_.cols ? col_end : order_.cols}};
  }

 private:
  ROWBAND_HOST_DEVICE constexpr void enter_band() {
    for (band_ = order_.band_at(rank_, position_); order_.chunk_count(band_) == 0;
         band_ = order_.band_at(rank_, position_)) {
      ++position_;
    }
    chunks_ = order_.chunk_count(band_);
    chunk_ = 0;
    enter_chunk();
  }
  ROWBAND_HOST_DEVICE constexpr void enter_chunk() {
    part_ = order_.chunk_tiles(band_, chunk_);
    size_ = part_.size() * order_.col_tiles();
  }

  const BasicTileOrder<Int>& order_;
  int rank_;
  Int left_;          // tiles from here to the end
  int position_ = 0;  // of the band in this rank's order
  int band_ = 0;
  int chunk_ = 0;
  int chunks_ = 0;          // of the band
  BasicRange<Int> part_{};  // tile rows of the chunk
  Int size_ = 0;            // tiles of the chunk
  Int index_ = 0;           // within the chunk
};

// Devices divide 32-bit numbers much faster; the engine checks that M fits.
using TileOrder = BasicTileOrder<std::int64_t>;
using DeviceTileOrder = BasicTileOrder<std::int32_t>;
using TileWalk = BasicTileWalk<std::int64_t>;
using DeviceTileWalk = BasicTileWalk<std::int32_t>;

}  // namespace rowband
