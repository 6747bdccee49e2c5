// The fused call on CPU ranks: one pass over the plan's tiles, peers' bands first, with the
// transfers running beside it.
//
//   a tile of a peer's band    multiply -> round -> store at the peer (direct) or stage it
//   (copy_engine);
//                              the chunk's last tile hands the chunk over
//   a tile of the own band     multiply -> wait for the chunk's partials -> reduce -> send
//   a peer's finished chunk    wait -> (fp8 wire: widen)
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rowband/engines/engine.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/engines/host/copy_engine.h"
#include "rowband/engines/host/recorder.h"
#include "rowband/engines/host/tile_gemm.h"
#include "rowband/engines/host/window.h"
#include "rowband/engines/host/worker_pool.h"

namespace rowband::host {

class HostFused final : public FusedExecutor {
 public:
  // Collective. The pool, scratch (one per worker) and communicator must outlive this object.
  HostFused(Communicator& comm, const PlanSpec& spec, const FusedOptions& options, TileGemm gemm,
            WorkerPool& pool, std::vector<TileScratch>& scratch);
  ~HostFused() override = default;  // finishes its queued copies first

  const Bf16* run(const FusedCall& call) override;
  void refuse(void* stream) override;
  const WindowLayout& window() const override { return window_.layout(); }
  std::int64_t calls() const override { return next_call_ - 1; }
  bool in_window(const void* begin, std::int64_t bytes) const override {
    return window_.contains(begin, bytes);
  }
  std::string poison() const override;

 private:
  struct InFlight;  // what one call shares between its workers
  struct Piece {    // bytes to move: offsets in the own part and in the peer's
    std::int64_t from, to, bytes;
  };
  struct Chunk {
    Leg leg;
    int peer;
    int index;  // within the band that travels
    Range rows;
  };

  void publish_card(std::int64_t call, std::int64_t rows);
  void work(InFlight& flight, int worker);
  void do_peer_tile(InFlight& flight, const Tile& tile, int worker);
  void do_own_tile(InFlight& flight, const Tile& tile, int worker);
  void do_arrival(InFlight& flight, int owner, int chunk, int worker);

  void multiply(InFlight& flight, const Tile& tile, int worker);
  void reduce(InFlight& flight, const Tile& tile, int worker);
  void store_at_peers(InFlight& flight, const Tile& tile, int worker);
  void finish_own_chunk(InFlight& flight, int chunk, int worker);
  void encode(InFlight& flight, Range rows, int worker);

  // Moves the pieces to the peer and publishes the chunk: on this thread (direct) or on the copy
  // thread.
  void send(InFlight& flight, const Chunk& chunk, std::vector<Piece> pieces, int worker);
  void await(InFlight& flight, Leg leg, int peer, int chunk, int worker);

  std::int64_t output_row(std::int64_t call, std::int64_t row) const;  // offset in every part
  std::int64_t codes_row(std::int64_t row) const;
  std::int64_t scales_row(std::int64_t row) const;
  bool direct() const { return spec_.transport == Transport::kDirect; }
  bool fp8() const { return spec_.wire == Wire::kFp8; }

  void inject_before(std::int64_t call) const;
  void inject_before_hand_over() const;
  bool moves_bytes(std::int64_t call, int chunk) const;  // false once a fault ordered otherwise
  void poison_with(const Error& error);

  const PlanSpec spec_;
  const FusedOptions options_;
  const FaultHooks faults_;
  const TileGemm gemm_;
  WorkerPool& pool_;
  std::vector<TileScratch>& scratch_;
  Window window_;
  const int rank_;
  const std::int64_t gather_group_;  // columns per scale of the fp8 wire
  std::int64_t next_call_;           // numbered from 1
  std::int64_t last_refused_ = kNever;
  mutable std::mutex poison_mutex_;
  std::string poison_;
  std::unique_ptr<CopyEngine> copy_engine_;  // last, so that its thread ends before the window goes
};

}  // namespace rowband::host
