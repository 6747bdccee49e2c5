#include "rowband/engines/cuda/fused_arguments.h"

#include <algorithm>
#include <vector>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/tensor_map.h"

namespace rowband::cuda {
namespace {

struct Counters {
  std::uint32_t widened[2], tiles_taken[2];
  std::uint32_t link_tickets, link_arrivals;
  std::uint64_t call_after_refusal;
  Status status;
  // Then calls[blocks] and chunk_begin[2][world][chunks] of 8 bytes, chunk_done[2][world][chunks]
  // and, of ready and copied, each [legs][world][chunks] of 4.
};

}  // namespace

std::int64_t flags_bytes(int world, int chunks) {
  const std::int64_t words = static_cast<std::int64_t>(kLegs) * world * chunks;
  return (words * 4 + 15) / 16 * 16;
}

std::int64_t control_bytes(int world, int chunks) {
  return flags_bytes(world, chunks) +
         world * static_cast<std::int64_t>(2 * sizeof(Card) + sizeof(Status));
}

std::size_t counters_bytes(int world, int chunks, int blocks) {
  return sizeof(Counters) + 8 * static_cast<std::size_t>(blocks) +
         (2 * (8 + 4) + 2 * 4 * kLegs) * static_cast<std::size_t>(world * chunks);
}

void point_to_counters(FusedArguments& a, void* counters) {
  auto* first = static_cast<Counters*>(counters);
  const int all = a.world * a.order.chunks;
  a.calls = reinterpret_cast<std::uint64_t*>(first + 1);
  std::uint64_t* const chunk_begin = a.calls + a.blocks;
  auto* const chunk_done = reinterpret_cast<std::uint32_t*>(chunk_begin + 2 * all);
  for (int i = 0; i < 2; ++i) {
    a.tally[i] = {&first->tiles_taken[i], &first->widened[i], chunk_done + i * all,
                  chunk_begin + i * all};
  }
  std::uint32_t* const ready = chunk_done + 2 * all;
  for (int leg = 0; leg < kLegs; ++leg) {
    for (int peer = 0; peer < a.world; ++peer) {
      a.ready[leg][peer] = ready + (leg * a.world + peer) * a.order.chunks;
      a.copied[leg][peer] = a.ready[leg][peer] + kLegs * all;
    }
  }
  a.link_tickets = &first->link_tickets;
  a.link_arrivals = &first->link_arrivals;
  a.call_after_refusal = &first->call_after_refusal;
  a.status = &first->status;
}

void set_deadline(FusedArguments& a, std::chrono::nanoseconds deadline) {
  constexpr std::chrono::nanoseconds kMostGrace = std::chrono::seconds(1);
  const std::chrono::nanoseconds grace = std::min(deadline / 4, kMostGrace);
  a.deadline_ns = static_cast<std::uint64_t>(deadline.count());
  a.leg_grace_ns = static_cast<std::uint32_t>(grace.count());
  a.chunk_grace_ns = static_cast<std::uint32_t>(grace.count() / a.order.chunks);
}

void preset_counters(void* counters, int blocks, std::int64_t calls) {
  Counters preset{};
  preset.link_tickets = preset.link_arrivals = static_cast<std::uint32_t>(calls);
  check(cudaMemcpy(counters, &preset, sizeof preset, cudaMemcpyHostToDevice),
        "presetting the counters");
  const std::vector<std::uint64_t> finished(static_cast<std::size_t>(blocks),
                                            static_cast<std::uint64_t>(calls));
  check(cudaMemcpy(static_cast<Counters*>(counters) + 1, finished.data(),
                   finished.size() * sizeof finished[0], cudaMemcpyHostToDevice),
        "presetting the blocks' counts of calls");
}

std::string why_not_aligned(const FusedCall& call) {
  if (call.x.rows == 0) return "";
  if (auto why = why_no_map(call.x.codes, call.x.row_stride); !why.empty()) {
    return "activation codes: " + why;
  }
  if (auto why = why_no_map(call.w.codes, call.w.row_stride); !why.empty()) {
    return "weight codes: " + why;
  }
  if (reinterpret_cast<std::uintptr_t>(call.bias) % 4 != 0) {
    return fmt::format("bias at {}: the GPU needs a multiple of 4",
                       static_cast<const void*>(call.bias));
  }
  return "";
}

FusedArguments call_arguments(const FusedCall& call, const CallPlan& plan, int rank, int world) {
  FusedArguments a{};
  const TileOrder& order = plan.order();
  if (order.rows > 0) {
    a.x = map_e4m3(call.x.codes, order.rows, call.x.depth, call.x.row_stride,
                   static_cast<int>(order.tile_rows / 2));
    a.w = map_e4m3(call.w.codes, order.cols, call.w.depth, call.w.row_stride, kBlockCols);
  }
  a.x_scales = call.x.scales;
  a.x_scale_row = call.x.scale_row_stride;
  a.x_scale_block = call.x.scale_block_stride;
  a.x_scales_side_by_side = a.x_scale_row == 1 && a.x_scale_block % 4 == 0 && order.rows % 4 == 0 &&
                            reinterpret_cast<std::uintptr_t>(a.x_scales) % 16 == 0;
  a.w_scales = call.w.scales;
  a.w_scale_row = call.w.scale_row_stride;
  a.w_scale_block = call.w.scale_block_stride;
  a.bias = call.bias;
  const auto narrow = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  a.order = {narrow(order.rows),
             narrow(order.cols),
             narrow(order.tile_rows),
             narrow(order.tile_cols),
             order.world,
             order.chunks,
             order.own_lag};
  a.mix = a.order.mix(rank);
  a.depth = call.x.depth;
  a.rank = rank;
  a.world = world;
  return a;
}

}  // namespace rowband::cuda
