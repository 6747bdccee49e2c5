// What the host code launches. Plain data and functions, so that only the .cu files need nvcc.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "rowband/numerics/types.h"
#include "rowband/plan/tile_order.h"

namespace rowband::cuda {

inline constexpr int kMaxWorld = 8;
inline constexpr int kGroupRows = 64;                   // of a tile, to each multiplying group
inline constexpr int kGroups = 3;                       // at most at work
inline constexpr int kTileRows = kGroups * kGroupRows;  // at most
inline constexpr int kTileCols = 256;                   // of a cluster: two blocks of 128
inline constexpr int kBlockCols = 128;
inline constexpr int kPieceRows = 64, kPieceCols = 64;  // of what leaves shared memory together
inline constexpr int kPieceParts = 4;                   // of a piece, each a warp's
inline constexpr int kHeadsBytes = kPieceParts * 4;     // of a packed piece, a word for each part
inline constexpr int kDepth = 128;                      // of a pipeline stage, and of a scale block

// What a wait is for: a peer's partials, its results, its start, or the own copies to it. The first
// two have flags in the window.
inline constexpr std::uint32_t kScatterLeg = 0, kGatherLeg = 1, kStartLeg = 2, kCopyLeg = 3;
inline constexpr int kLegs = 2;

// Why a call failed; written once, by the first wait that ended without its event, for the host to
// read, and to the peers, who pass it on.
struct Status {
  enum Code : std::uint32_t {
    kFine,
    kDeadline,
    kRefusal,         // the peer refused the call
    kDifferentRows,   // passed another M
    kDifferentSlots,  // writes into another output slot
  };
  std::uint32_t code;
  std::uint32_t rank;  // whose wait
  std::uint32_t leg;
  std::uint32_t peer;
  std::uint32_t chunk;
  std::uint32_t unused;
  std::int64_t own, theirs;  // rows or slots of `rank` and of `peer` that differ
};

// What a traced call did, by the device's clock.
struct DeviceEvent {
  enum Kind : std::uint32_t {
    kStart,     // not recorded: where the first event begins
    kMultiply,  // a cluster's products of a tile
    kHandOver,  // its sums to the senders; of the own band: the reduce
    kSend,      // a chunk: from its first tile to its flag
    kArrival,   // the wait for a peer's finished chunk
    kWiden,     // a cluster's share of a peer's finished chunk
  };
  std::uint64_t begin_ns, end_ns;
  std::uint32_t kind;
  std::int32_t cluster;
  std::int32_t band, chunk;
  std::int32_t row, col;  // of the tile
};

// In pinned host memory: the device says that it runs, the host asks, the device answers with its
// clock.
struct ClockExchange {
  std::uint64_t device_ns;
  std::uint32_t running, asked;
};

// In place of the rows of a call that a rank does not take part in.
inline constexpr std::int64_t kRefused = -1;

// A rank's word to its peers: this call has begun, with so many rows, its result in that slot.
struct Card {
  std::uint32_t epoch;
  std::uint32_t slot;
  std::int64_t rows;
};

// What the blocks of one call count together; in device memory.
struct Tally {
  std::uint32_t* tiles_taken;  // beside each cluster's first; or null: in turn
  std::uint32_t* widened;      // pieces taken for widening
  std::uint32_t* chunk_done;   // [world][chunks]: parts handed over
  std::uint64_t* chunk_begin;  // [world][chunks]: of a traced call
};

// One launch of the fused kernel on one rank. Pointers ending in _at are indexed by the rank whose
// memory they lead to; everything else is this rank's own.
struct FusedArguments {
  CUtensorMap x, w;                    // e4m3 [rows, depth], [cols, depth]
  CUtensorMap partials_to[kMaxWorld];  // bf16: where this rank's partial of that peer's band goes,
                                       // the peer's window or, for the copy engine, the own one
  CUtensorMap output_at[kMaxWorld];    // bf16 [rows, cols]: the output slot
  CUtensorMap received[kMaxWorld];     // bf16: that peer's partial of the own band, here
  CUtensorMap codes_at[kMaxWorld];     // fp8 wire: e4m3 [rows, cols], the finished rows
  // Packed partials: by blocks of a piece, row by row of blocks, where partials_to's lie; and each
  // block's heads.
  std::byte* packed_at[kMaxWorld];
  std::byte* packing_heads_at[kMaxWorld];
  float* code_scales_at[kMaxWorld];            // fp8 wire: [blocks of cols][code_scale_rows]
  std::uint32_t* scatter_flags_at[kMaxWorld];  // [chunks]: this rank's, in that peer's window
  std::uint32_t* gather_flags_at[kMaxWorld];
  Card* card_at[kMaxWorld];
  Status* failure_at[kMaxWorld];

  const std::byte* packed[kMaxWorld];  // those that have come
  const std::byte* packing_heads[kMaxWorld];
  const std::uint32_t* scatter_flags[kMaxWorld];
  const std::uint32_t* gather_flags[kMaxWorld];
  const Card* card[kMaxWorld];
  const Status* failure[kMaxWorld];  // what that peer failed with

  const float* x_scales;
  std::int64_t x_scale_row, x_scale_block;  // strides, in elements
  bool x_scales_side_by_side;               // those of any tile's rows, in whole 16-byte units
  const float* w_scales;
  std::int64_t w_scale_row, w_scale_block;
  const Bf16* bias;  // [cols] or null

  // fp8 wire: what the peers' finished rows are widened from and to.
  const E4m3* codes;         // [rows, cols]
  const float* code_scales;  // [blocks of cols][code_scale_rows]
  std::int64_t code_scale_rows;
  Bf16* output;        // [rows, cols]
  std::uint32_t slot;  // the output's

  // Copy engine: local flags, [chunks] by leg and peer. The copy queues wait for `ready`, reset it,
  // copy, and set `copied`, which the kernel resets and passes on to the peer's flag.
  std::uint32_t* ready[kLegs][kMaxWorld];
  std::uint32_t* copied[kLegs][kMaxWorld];

  DeviceEvent* events;  // null: nothing is recorded
  std::uint32_t* event_count;
  std::uint32_t event_capacity;

  // Tickets for pieces on their way to the peers, and those that have arrived; equal between calls.
  std::uint32_t* link_tickets;
  std::uint32_t* link_arrivals;
  std::int32_t pieces_on_link;  // at most, at one time; 0: no limit

  // Finished, by each of the blocks for itself, so that none waits for the others at a call's end;
  // on the device, so that a graph does not freeze it.
  std::uint64_t* calls;  // [blocks]
  std::int32_t blocks;
  std::uint64_t* call_after_refusal;  // the call behind the last that this rank refused, or 0
  Tally tally[2];       // of the even calls and of the odd: a call's own is zero at its start; it
                        // clears the other for the next
  Status* status;       // device memory
  Status* host_status;  // the same for the host, mapped
  std::uint64_t deadline_ns;
  std::uint32_t leg_grace_ns, chunk_grace_ns;  // how much longer each later leg's and chunk's waits
                                               // last, all chunks together as much as a leg

  DeviceTileOrder order;  // tiles of 1 to kGroups times kGroupRows by kTileCols
  DeviceTileMix mix;      // this rank's
  std::int64_t depth;
  std::int32_t rank, world;
  bool fp8_wire;
  bool copy_engine;
  std::int32_t packed_chunks;  // of a band, the first ones, whose whole pieces travel packed

  // Faults that tests order: see FaultHooks.
  bool skip_transfers, drop_transfers;
  std::int32_t skip_only_chunk;  // -1: all
  std::uint32_t jitter_ns;       // at most so long before a tile leaves
};

struct KernelResources {
  int registers = 0;            // of a thread at the kernel's start
  std::size_t local_bytes = 0;  // of a thread: registers spilled, and arrays
};
// Of the fused kernel that serves the wire, on the current device.
KernelResources fused_kernel_resources(bool fp8_wire);

// Prepares every kernel of this file for the current device, so that no launch loads code while a
// stream waits for a peer. Throws Error(kUnavailable) when the device is no sm_90.
void load_fused_kernel();
void load_quantize_kernel();
void load_clock_exchange();

void load_bias_kernel();

void launch_clock_exchange(ClockExchange* exchange, cudaStream_t stream);
void launch_nothing(cudaStream_t stream);

// When a kernel's blocks may take their places.
enum class Start {
  kAfterLast,  // once the stream's last kernel has ended and its memory can be seen
  kEarly,      // once its blocks have ended (programmatic dependent launch); they wait for the rest
               // in their places. Not where ranks share a GPU: behind a kernel of the caller's
               // that lets others come before its end, the places may be another rank's.
};

// `clusters` pairs of blocks, all of which must be resident at once with every other rank's.
void launch_fused(const FusedArguments& arguments, int clusters, Start start, cudaStream_t stream);

// Tells the peers that this rank does not take part in the next call, which counts all the same.
void launch_refuse(const FusedArguments& arguments, cudaStream_t stream);

// codes [rows, depth] dense; scale of (row, block) at row * scale_row + block * scale_block.
void launch_quantize(const Bf16* x, std::int64_t rows, std::int64_t depth,
                     std::int64_t x_row_stride, bool ue8m0, E4m3* codes, float* scales,
                     std::int64_t scale_row, std::int64_t scale_block, cudaStream_t stream);

// Adds bias [cols] to each row of out [rows, cols], both 16-byte aligned; cols a multiple of 8.
void launch_add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                     cudaStream_t stream);

}  // namespace rowband::cuda
