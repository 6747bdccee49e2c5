#include "rowband/plan/plan.h"

#include <algorithm>

#include "rowband/base/fail.h"
#include "rowband/numerics/quantize.h"

namespace rowband {
namespace {

constexpr std::int64_t kBf16Bytes = 2;
constexpr std::int64_t kScaleBytes = 4;
constexpr std::int64_t kRegionAlignment = 4096;
constexpr std::int64_t kScaleRowAlignment = 64;
constexpr int kMaxWorld = 64;
constexpr int kMaxChunks = 64;
constexpr int kMaxSlots = 8;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

bool power_of_two(std::int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// A name and its value, for each enum that users spell.
template <typename T>
struct Spelling {
  std::string_view name;
  T value;
};
constexpr Spelling<Wire> kWires[] = {{"bf16", Wire::kBf16}, {"fp8", Wire::kFp8}};
constexpr Spelling<Transport> kTransports[] = {{"copy_engine", Transport::kCopyEngine},
                                               {"direct", Transport::kDirect}};
constexpr Spelling<GatherScale> kGatherScales[] = {{"row", GatherScale::kPerRow},
                                                   {"block", GatherScale::kPerRowBlock}};

template <typename T, std::size_t n>
std::string_view spell(const Spelling<T> (&table)[n], T value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

template <typename T, std::size_t n>
T parse(const Spelling<T> (&table)[n], std::string_view what, std::string_view text) {
  std::string legal;
  for (const auto& entry : table) {
    if (entry.name == text) return entry.value;
    legal += fmt::format("{}'{}'", legal.empty() ? "" : ", ", entry.name);
  }
  fail(ErrorCode::kInvalidArgument, "{} '{}' is not one of {}", what, text, legal);
}

bool encodes(const PlanSpec& spec) { return spec.wire == Wire::kFp8 && spec.world > 1; }

// Of an owner's band, as each of its peers sends them. Rows beyond the last whole block are not
// packed.
std::int64_t partial_bytes(const PlanSpec& spec, const TileOrder& order, int owner) {
  const Range band = order.band_tiles(owner);
  const std::int64_t packed_end =
      spec.packs_partials() ? order.chunk_tiles(owner, spec.packed_chunks - 1).end : band.begin;
  const std::int64_t blocks_down = order.rows_of({band.begin, packed_end}).size() / kPackedBlock;
  const std::int64_t block = kPackedBlock * kPackedBlock * 12 / 8 + spec.packing_head_bytes;
  return blocks_down * (spec.cols / kPackedBlock) * block +
         (order.rows_of(band).size() - blocks_down * kPackedBlock) * spec.cols * kBf16Bytes;
}

// As it sends them to each of its peers.
std::int64_t result_bytes(const PlanSpec& spec, const TileOrder& order, int owner) {
  const std::int64_t scales =
      spec.gather_scale == GatherScale::kPerRow ? 1 : scale_blocks(spec.cols);
  const std::int64_t row =
      encodes(spec) ? spec.cols + scales * kScaleBytes : spec.cols * kBf16Bytes;
  return order.rows_of(order.band_tiles(owner)).size() * row;
}

}  // namespace

std::string_view wire_name(Wire wire) { return spell(kWires, wire); }
std::string_view transport_name(Transport transport) { return spell(kTransports, transport); }
std::string_view gather_scale_name(GatherScale scale) { return spell(kGatherScales, scale); }
Wire parse_wire(std::string_view text) { return parse(kWires, "wire", text); }
Transport parse_transport(std::string_view text) { return parse(kTransports, "transport", text); }
GatherScale parse_gather_scale(std::string_view text) {
  return parse(kGatherScales, "gather scale", text);
}

std::string why_not_expressible(const PlanSpec& s) {
  if (s.world < 1 || s.world > kMaxWorld) {
    return fmt::format("world size W={} is not in 1..{}", s.world, kMaxWorld);
  }
  if (s.max_rows < 1) return fmt::format("max_rows={} must be at least 1", s.max_rows);
  if (s.cols < 8 || s.cols % 8 != 0) {
    return fmt::format("N={} columns: must be a positive multiple of 8", s.cols);
  }
  if (s.depth < kScaleBlock || s.depth % kScaleBlock != 0) {
    return fmt::format("K={} per rank: must be a positive multiple of the scale block {}", s.depth,
                       kScaleBlock);
  }
  if (s.chunks < 1 || s.chunks > kMaxChunks) {
    return fmt::format("chunks={} is not in 1..{}", s.chunks, kMaxChunks);
  }
  if (s.slots < 1 || s.slots > kMaxSlots) {
    return fmt::format("slots={} is not in 1..{}", s.slots, kMaxSlots);
  }
  if (s.min_tile_rows < 1 || s.tile_rows < 1 || s.tile_rows % s.min_tile_rows != 0 ||
      (s.cost.workers == 0 && !power_of_two(s.tile_rows / s.min_tile_rows))) {
    return fmt::format("tile_rows={} and min_tile_rows={}: the first must be the second{}",
                       s.tile_rows, s.min_tile_rows,
                       s.cost.workers == 0 ? ", doubled any number of times" : "'s multiple");
  }
  if (s.cost.workers > 0 && s.tile_rows / s.min_tile_rows > std::ssize(s.cost.block_us)) {
    return fmt::format("tile_rows={} and min_tile_rows={}: the cost is known of {} heights",
                       s.tile_rows, s.min_tile_rows, s.cost.block_us.size());
  }
  if (s.tile_cols < kScaleBlock || s.tile_cols % kScaleBlock != 0) {
    return fmt::format("tile_cols={}: must be a positive multiple of {}", s.tile_cols, kScaleBlock);
  }
  if (s.packed_chunks < 0 || s.packed_chunks > s.chunks) {
    return fmt::format("packed_chunks={}: must be from 0 to the {} chunks of a band",
                       s.packed_chunks, s.chunks);
  }
  if (s.packs_partials() && (s.cols % kPackedBlock != 0 || s.min_tile_rows % kPackedBlock != 0)) {
    return fmt::format(
        "N={} columns in tiles of at least {} rows: packed partials want multiples "
        "of {}",
        s.cols, s.min_tile_rows, kPackedBlock);
  }
  if (s.packs_partials() && s.packing_head_bytes < 1) {
    return fmt::format("packing_head_bytes={}: packed partials want some for each block",
                       s.packing_head_bytes);
  }
  if (s.packs_partials() && s.transport != Transport::kDirect) {
    return fmt::format("transport {}: packed partials want direct", transport_name(s.transport));
  }
  // Every region is at most (max_rows + W * tile_rows) * N * 2 * slots bytes; keep their sum in 62
  // bits.
  std::int64_t bytes = 0;
  if (__builtin_add_overflow(s.max_rows, s.world * s.tile_rows, &bytes) ||
      __builtin_mul_overflow(bytes, s.cols, &bytes) ||
      __builtin_mul_overflow(bytes, kBf16Bytes * (s.slots + 4), &bytes) || bytes >> 62 != 0) {
    return fmt::format("max_rows={} x N={}: the window would not fit in 62-bit sizes", s.max_rows,
                       s.cols);
  }
  return "";
}

std::int64_t WindowLayout::received_row(int self, int peer, std::int64_t row_in_band) const {
  return received + (peer_slot(self, peer, world) * band_rows + row_in_band) * cols * kBf16Bytes;
}

std::int64_t WindowLayout::packing_heads_of(int self, int peer) const {
  return packing_heads + peer_slot(self, peer, world) * packing_heads_bytes;
}

std::int64_t WindowLayout::staging_row(int self, int peer, std::int64_t row_in_band) const {
  return received_row(self, peer, row_in_band) - received + staging;
}

WindowLayout plan_window(const PlanSpec& spec, std::int64_t control_bytes) {
  if (const auto why = why_not_expressible(spec); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  WindowLayout layout;
  layout.world = spec.world;
  layout.cols = spec.cols;
  for (std::int64_t height = spec.tile_rows; height > 0; height = next_height(spec, height)) {
    layout.band_rows =
        std::max(layout.band_rows, ceil_div(ceil_div(spec.max_rows, height), spec.world) * height);
  }
  layout.band_rows = std::min(layout.band_rows, spec.max_rows);
  layout.scales_per_row = spec.gather_scale == GatherScale::kPerRow ? 1 : scale_blocks(spec.cols);
  // Whole boxes of rows, so that a tile's scales leave in one piece even from a short tile.
  const std::int64_t scale_rows =
      spec.block_major_scales ? round_up(spec.max_rows, kScaleRowAlignment) : spec.max_rows;
  layout.scale_row_stride = spec.block_major_scales ? 1 : layout.scales_per_row;
  layout.scale_block_stride = spec.block_major_scales ? scale_rows : 1;

  std::int64_t end = 0;
  const auto place = [&end](std::int64_t bytes) {
    const std::int64_t at = end;
    end += round_up(bytes, kRegionAlignment);
    return at;
  };
  const std::int64_t partials = (spec.world - 1) * layout.band_rows * spec.cols * kBf16Bytes;
  layout.control = place(control_bytes);
  layout.received = place(partials);
  layout.packing_heads_bytes =
      spec.packs_partials()
          ? layout.band_rows / kPackedBlock * (spec.cols / kPackedBlock) * spec.packing_head_bytes
          : 0;
  layout.packing_heads = place((spec.world - 1) * layout.packing_heads_bytes);
  layout.staging = place(spec.transport == Transport::kCopyEngine ? partials : 0);
  layout.output = place(spec.slots * spec.max_rows * spec.cols * kBf16Bytes);
  layout.gather_codes = place(encodes(spec) ? spec.max_rows * spec.cols : 0);
  layout.gather_scales =
      place(encodes(spec) ? scale_rows * layout.scales_per_row * kScaleBytes : 0);
  layout.bytes = end;
  return layout;
}

std::int64_t next_height(const PlanSpec& spec, std::int64_t height) {
  const std::int64_t least = std::max<std::int64_t>(spec.min_tile_rows, 1);
  const std::int64_t next = spec.cost.workers > 0 ? height - least : height / 2;
  return next >= least ? next : 0;
}

double expected_us(const PlanSpec& spec, std::int64_t rows, std::int64_t tile_rows) {
  const TileCost& cost = spec.cost;
  const TileOrder order{rows, spec.cols, tile_rows, spec.tile_cols, spec.world, spec.chunks};
  const std::int64_t groups = tile_rows / spec.min_tile_rows;
  const double tile =
      cost.tile_us + static_cast<double>(scale_blocks(spec.depth)) * cost.block_us[groups - 1];
  const double encode = encodes(spec) ? cost.encode_us * static_cast<double>(groups) : 0;
  const auto rounds = [&](std::int64_t tiles) {
    return static_cast<double>(ceil_div(tiles, cost.workers));
  };
  // The busiest rank of each leg: who owns little sends many partials, who owns much many results.
  std::int64_t partials = 0, fewest = INT64_MAX, results = 0;
  for (int owner = 0; owner < spec.world; ++owner) {
    const std::int64_t bytes = partial_bytes(spec, order, owner);
    partials += bytes;
    fewest = std::min(fewest, bytes);
    results = std::max(results, (spec.world - 1) * result_bytes(spec, order, owner));
  }
  const auto on_link = [&](double bytes) { return bytes / cost.link_bytes_per_us; };
  const double link = on_link(static_cast<double>(partials - fewest + results));
  const double tiles = rounds(order.tiles()) * (tile + encode / spec.world);
  // Rank 0 owns as many tiles as any.
  const std::int64_t own = std::max<std::int64_t>(order.band_tiles(0).size() * order.col_tiles, 1);
  const bool by_chunk =
      spec.transport == Transport::kCopyEngine && spec.world > 1 && order.chunk_count(0) > 0;
  const std::int64_t first = by_chunk ? order.tiles_in_chunk(0, 0) : 1;
  const std::int64_t last =
      by_chunk ? order.tiles_in_chunk(0, order.chunk_count(0) - 1) : cost.workers;
  const double last_share = std::min(1.0, static_cast<double>(last) / static_cast<double>(own));
  return rounds(first) * tile + std::max(tiles, link) + encode +
         on_link(last_share * static_cast<double>(results));
}

std::int64_t pick_tile_rows(const PlanSpec& spec, std::int64_t rows) {
  std::int64_t best = spec.tile_rows;
  if (spec.cost.workers == 0) {
    while (ceil_div(rows, best) < spec.world && next_height(spec, best) > 0) {
      best = next_height(spec, best);
    }
    return best;
  }
  double least_us = expected_us(spec, rows, best);
  for (std::int64_t height = next_height(spec, best); height > 0;
       height = next_height(spec, height)) {
    const double us = expected_us(spec, rows, height);
    if (us <= least_us) {
      best = height;
      least_us = us;
    }
  }
  return best;
}

CallPlan::CallPlan(const PlanSpec& spec, std::int64_t rows) : spec_(spec) {
  if (const auto why = why_not_expressible(spec); !why.empty()) {
    fail(ErrorCode::kInvalidArgument, "{}", why);
  }
  if (rows < 0 || rows > spec.max_rows) {
    fail(ErrorCode::kInvalidArgument, "M={} rows: this plan takes 0..{} (max_rows)", rows,
         spec.max_rows);
  }
  order_ = {rows,        spec.cols,   pick_tile_rows(spec, rows), spec.tile_cols, spec.world,
            spec.chunks, spec.own_lag};
}

Tile CallPlan::tile(int rank, std::int64_t index) const {
  if (index < 0 || index >= tiles()) {
    fail(ErrorCode::kInternal, "tile {} of a plan of {}", index, tiles());
  }
  return order_.tile(rank, index);
}

std::int64_t CallPlan::scatter_bytes(int rank) const {
  std::int64_t bytes = 0;
  for (int owner = 0; owner < spec_.world; ++owner) {
    if (owner != rank) bytes += partial_bytes(spec_, order_, owner);
  }
  return bytes;
}

std::int64_t CallPlan::gather_bytes(int rank) const {
  return (spec_.world - 1) * result_bytes(spec_, order_, rank);
}

}  // namespace rowband
