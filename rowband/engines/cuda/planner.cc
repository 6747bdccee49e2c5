#include "rowband/engines/cuda/planner.h"

#include <algorithm>

#include "rowband/base/fail.h"
#include "rowband/engines/cuda/fused_arguments.h"
#include "rowband/engines/cuda/kernels.h"

namespace rowband::cuda {

namespace {

class CudaPlanner final : public EnginePlanner {
 public:
  CudaPlanner(int clusters, int device_ranks) : clusters_(clusters), device_ranks_(device_ranks) {}

  PlanSpec with_tiles(PlanSpec spec) const override {
    spec.tile_rows = kTileRows;
    spec.min_tile_rows = kGroupRows;
    spec.tile_cols = kTileCols;
    spec.cost = {.workers = clusters_,
                 .tile_us = 1.0,
                 .block_us = {0.29, 0.41, 0.55},  // fewer groups leave the tensor cores idle
                 .link_bytes_per_us = 354e3,
                 .encode_us = 1.6};
    // Tiles of the peers' bands keep the link busy, those of the own band, encoded for the fp8
    // wire, the cores: together they take less than one after the other. A round of tiles later
    // the partials are mostly there.
    if (between(spec.transport, spec.wire)) spec.own_lag = clusters_;
    spec.block_major_scales = true;
    static_assert(kPackedBlock == kPieceRows && kPackedBlock == kPieceCols);
    if (spec.transport == Transport::kDirect && spec.cols % kPackedBlock == 0) {
      spec.packed_chunks = packed_chunks(spec);
    }
    if (spec.packs_partials()) spec.packing_head_bytes = kHeadsBytes;
    if (spec.packed_chunks == spec.chunks) {
      spec.tile_rows = 2 * kGroupRows;  // the tallest would be up to 3% slower in large calls
    }
    return spec;
  }

  std::string why_not_served(const PlanSpec& spec) const override {
    if (spec.wire == Wire::kFp8 && spec.gather_scale != GatherScale::kPerRowBlock) {
      return "gather scale row: the cuda engine encodes 128 columns at a time, scale block";
    }
    if (spec.wire == Wire::kFp8 && spec.cols % 16 != 0) {
      return fmt::format("wire fp8 with N={}: the cuda engine wants a multiple of 16", spec.cols);
    }
    if (spec.transport == Transport::kCopyEngine && device_ranks_ > 1) {
      return fmt::format(
          "transport copy_engine with {} ranks on a GPU: their kernels leave the copies no room; "
          "take "
          "transport direct, or a GPU for each rank",
          device_ranks_);
    }
    if (spec.world > kMaxWorld) {
      return fmt::format("W={}: the cuda engine joins at most {} ranks", spec.world, kMaxWorld);
    }
    if (spec.max_rows > INT32_MAX - kTileRows) {
      return fmt::format("max_rows={}: the cuda engine counts rows in 32 bits", spec.max_rows);
    }
    if (spec.cols > INT32_MAX - kTileCols) {
      return fmt::format("N={}: the cuda engine counts columns in 32 bits", spec.cols);
    }
    if (spec.depth > INT32_MAX) {
      return fmt::format("K={} per rank: the cuda engine counts it in 32 bits", spec.depth);
    }
    return "";
  }

  std::int64_t window_bytes(const PlanSpec& spec) const override {
    return plan_window(spec, control_bytes(spec.world, spec.chunks)).bytes;
  }

  int tiles_at_once() const override { return clusters_; }

  // Each copy costs its engine 5 us more than its bytes, but the first can begin the earlier. Own
  // tiles between the peers' begin after a chunk of them.
  int best_chunks(Transport transport, Wire wire) const override {
    if (between(transport, wire)) return 8;
    return transport == Transport::kCopyEngine ? 4 : 2;
  }

 private:
  // Of a band. All of them where a large call waits for the link even with packing on top of its
  // products, which makes these slower: not at K = 4096, where it gained nothing. Where the link is
  // not so clearly what it waits for (the fp8 wire at K = 2048) and own tiles come between the
  // peers', the first: until own ones begin the cores wait for the link. Of eight chunks five
  // measured best.
  static int packed_chunks(const PlanSpec& spec) {
    const double ratio = link_to_products(spec);
    if (ratio > 1.6) return spec.chunks;
    if (ratio > 1.15 && between(spec.transport, spec.wire)) return std::max(1, spec.chunks * 5 / 8);
    return 0;
  }

  // What a large call's bytes take on the link, unpacked, over what its products take.
  static double link_to_products(const PlanSpec& spec) {
    const TileCost& cost = spec.cost;
    const auto blocks = static_cast<double>(scale_blocks(spec.depth));
    // Of one tile, as if the clusters shared it; of what leaves a rank, a tile's part.
    const double products = (cost.tile_us + blocks * cost.block_us.back()) / cost.workers;
    const auto values = static_cast<double>(spec.tile_rows * spec.tile_cols);
    const double bytes = sizeof(Bf16) + (spec.wire == Wire::kFp8 ? sizeof(E4m3) : sizeof(Bf16));
    const double sent = values * bytes * (spec.world - 1) / spec.world;
    return sent / cost.link_bytes_per_us / products;
  }

  static bool between(Transport transport, Wire wire) {
    return transport == Transport::kDirect && wire == Wire::kFp8;
  }

  const int clusters_, device_ranks_;
};

}  // namespace

// Pieces have 8 KiB, packed ones 6. Fewer leave NVLink 4 idle, on some GPUs sooner than on others;
// more stand in the network and the operands' loads behind them, which short calls feel and low
// tiles, of more loads (docs/performance.md). Of several peers any may be busy with the others'
// pieces: twice as many, a guess.
int pieces_on_link(const PlanSpec& spec, const CallPlan& plan) {
  constexpr int kPlain = 96, kPacked = 112, kOfShortCalls = 72;
  static_assert(kOfShortCalls >= kMaxWorld - 1);    // a finished piece leaves for all peers at once
  if (plan.tiles() <= spec.cost.workers) return 0;  // a single round fills no link for long
  const std::int64_t rounds = plan.tiles() / spec.cost.workers;
  const bool is_short = rounds < (plan.tile_rows() == kGroupRows ? 16 : 4);
  const int to_one = is_short ? kOfShortCalls : spec.packs_partials() ? kPacked : kPlain;
  return spec.world == 2 ? to_one : 2 * to_one;
}

std::unique_ptr<EnginePlanner> make_cuda_planner(const PlannerOptions& options) {
  const int most = options.multiprocessors / 2;
  if (options.device_ranks < 1 || options.device_ranks > most) {
    fail(ErrorCode::kInvalidArgument,
         "device_ranks={}: must be from 1 to {}, two of the GPU's {} SMs for each rank",
         options.device_ranks, most, options.multiprocessors);
  }
  return std::make_unique<CudaPlanner>(most / options.device_ranks, options.device_ranks);
}

}  // namespace rowband::cuda
