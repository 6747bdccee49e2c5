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

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  ROWBAND_HOST_DEVICE constexpr std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// The unit of GEMM work.
struct Tile {
  int band = 0;   // the owner's rank
  int chunk = 0;  // within the band
  Range rows;     // of the whole output
  Range cols;
};

// The order of one call. Ranges of tiles count whole tile rows; the last one may be short.
struct TileOrder {
  std::int64_t rows = 0;  // M
  std::int64_t cols = 0;  // N
  std::int64_t tile_rows = 1;
  std::int64_t tile_cols = 1;
  std::int32_t world = 1;   // W
  std::int32_t chunks = 1;  // per band at most

  ROWBAND_HOST_DEVICE constexpr std::int64_t row_tiles() const {
    return (rows + tile_rows - 1) / tile_rows;
  }
  ROWBAND_HOST_DEVICE constexpr std::int64_t col_tiles() const {
    return (cols + tile_cols - 1) / tile_cols;
  }
  ROWBAND_HOST_DEVICE constexpr std::int64_t tiles() const { return row_tiles() * col_tiles(); }

  // Part `index` of `total` dealt over `parts`: sizes differ by at most one, larger ones first.
  ROWBAND_HOST_DEVICE static constexpr Range deal(std::int64_t total, std::int64_t parts,
                                                  std::int64_t index) {
    const std::int64_t base = total / parts, extra = total % parts;
    const std::int64_t begin = index * base + (index < extra ? index : extra);
    return {begin, begin + base + (index < extra ? 1 : 0)};
  }

  ROWBAND_HOST_DEVICE constexpr Range band_tiles(int owner) const {
    return deal(row_tiles(), world, owner);
  }
  ROWBAND_HOST_DEVICE constexpr int chunk_count(int owner) const {
    const std::int64_t size = band_tiles(owner).size();
    return static_cast<int>(size < chunks ? size : chunks);
  }
  ROWBAND_HOST_DEVICE constexpr Range chunk_tiles(int owner, int index) const {
    const Range band = band_tiles(owner);
    const Range part = deal(band.size(), chunk_count(owner), index);
    return {band.begin + part.begin, band.begin + part.end};
  }
  ROWBAND_HOST_DEVICE constexpr std::int64_t tiles_in_chunk(int owner, int index) const {
    return chunk_tiles(owner, index).size() * col_tiles();
  }
  ROWBAND_HOST_DEVICE constexpr Range rows_of(Range tiles) const {
    const std::int64_t begin = tiles.begin * tile_rows, end = tiles.end * tile_rows;
    return {begin < rows ? begin : rows, end < rows ? end : rows};
  }

  // The bands in the order `rank` computes them: rank + 1, rank + 2, ..., its own last.
  ROWBAND_HOST_DEVICE constexpr int band_at(int rank, int position) const {
    return (rank + 1 + position) % world;
  }

  // Tile `index` in [0, tiles()): bands by band_at, chunks ascending, then column by column with
  // the chunk's row tiles innermost, so that a weight panel is used while warm. An empty tile
  // beyond.
  ROWBAND_HOST_DEVICE constexpr Tile tile(int rank, std::int64_t index) const {
    for (int position = 0; position < world; ++position) {
      const int owner = band_at(rank, position);
      const std::int64_t band_size = band_tiles(owner).size() * col_tiles();
      if (index >= band_size) {
        index -= band_size;
        continue;
      }
      int chunk = 0;
      for (; index >= tiles_in_chunk(owner, chunk); ++chunk) index -= tiles_in_chunk(owner, chunk);
      const Range part = chunk_tiles(owner, chunk);
      const std::int64_t row_tile = part.begin + index % part.size();
      const std::int64_t col = index / part.size() * tile_cols;
      return {owner,
              chunk,
              rows_of({row_tile, row_tile + 1}),
              {col, col + tile_cols < cols ? col + tile_cols : cols}};
    }
    return {};
  }
};

}  // namespace rowband
