#include "rowband/engines/host/fused.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <random>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/engines/host/epilogue.h"
#include "rowband/numerics/quantize.h"

namespace rowband::host {
namespace {

constexpr std::chrono::nanoseconds kGatherGrace = std::chrono::seconds(1);

std::string label(int band, int chunk, Range rows) {
  return fmt::format("band {} chunk {} rows {}..{}", band, chunk, rows.begin, rows.end - 1);
}

std::string label(const Tile& tile) {
  return fmt::format("{} cols {}..{}", label(tile.band, tile.chunk, tile.rows), tile.cols.begin,
                     tile.cols.end - 1);
}

FusedOptions checked(FusedOptions options) {
  if (options.faults == nullptr) options.faults = std::make_shared<FaultHooks>();
  return options;
}

}  // namespace

struct HostFused::InFlight {
  InFlight(const FusedCall& c, const PlanSpec& spec, int rank, std::int64_t number_,
           std::chrono::nanoseconds budget, int workers)
      : call(c),
        number(number_),
        plan(spec, c.x.rows),
        peer_tiles(plan.peer_tiles(rank)),
        deadline(Deadline::after(budget)),
        gather_deadline(Deadline::after(budget + std::min(budget / 4, kGatherGrace))),
        tiles_left(static_cast<std::size_t>(spec.world * spec.chunks)) {
    for (int owner = 0; owner < spec.world; ++owner) {
      for (int chunk = 0; chunk < plan.chunks(owner); ++chunk) {
        tiles_left[owner * spec.chunks + chunk].store(plan.tiles_in_chunk(owner, chunk));
      }
    }
    for (int position = 0; position + 1 < spec.world; ++position) {
      const int owner = plan.band_at(rank, position);
      for (int chunk = 0; chunk < plan.chunks(owner); ++chunk) arrivals.push_back({owner, chunk});
    }
    for (int worker = 0; worker < workers; ++worker) {
      lanes.push_back(
          std::make_unique<Recorder>(c.timeline, rank, fmt::format("worker {}", worker)));
    }
    if (spec.transport == Transport::kCopyEngine) {
      copy_lane = std::make_shared<Recorder>(c.timeline, rank, "copy thread");
    }
  }

  void fail_with(std::exception_ptr e) {
    const std::lock_guard lock(error_mutex);
    if (!error) error = std::move(e);
    failed.store(true);
  }

  const FusedCall& call;
  const std::int64_t number;
  const CallPlan plan;
  const std::int64_t peer_tiles;
  const Deadline deadline;
  // An owner whose results do not come is mostly waiting for a partial itself: whoever waits for
  // that partial should speak first and name the rank at fault.
  const Deadline gather_deadline;
  std::vector<std::pair<int, int>> arrivals;          // (owner, chunk)
  std::vector<std::atomic<std::int64_t>> tiles_left;  // [owner][chunk]
  std::atomic<std::int64_t> next_task{0};             // tiles in plan order, then arrivals
  std::vector<std::unique_ptr<Recorder>> lanes;       // by worker
  std::shared_ptr<Recorder> copy_lane;                // kept by the jobs that use it
  std::atomic<bool> failed{false};
  std::mutex error_mutex;
  std::exception_ptr error;
};

HostFused::HostFused(Communicator& comm, const PlanSpec& spec, const FusedOptions& options,
                     TileGemm gemm, WorkerPool& pool, std::vector<TileScratch>& scratch)
    : spec_(spec),
      options_(checked(options)),
      faults_(*options_.faults),
      gemm_(gemm),
      pool_(pool),
      scratch_(scratch),
      window_(comm, spec, faults_.fail_window_allocation ? "ordered by a fault hook" : "",
              Deadline::after(options.deadline)),
      rank_(comm.rank()),
      gather_group_(spec.gather_scale == GatherScale::kPerRow ? spec.cols : kScaleBlock),
      next_call_(faults_.first_call) {
  if (!direct()) copy_engine_ = std::make_unique<CopyEngine>();
}

std::string HostFused::poison() const {
  {
    const std::lock_guard lock(poison_mutex_);
    if (!poison_.empty()) return poison_;
  }
  return window_.failure();
}

void HostFused::poison_with(const Error& error) {
  const std::lock_guard lock(poison_mutex_);
  poison_ = error.what();
  // A reason that came from a peer has reached everyone already.
  if (error.code() != ErrorCode::kPoisoned) window_.report_failure(poison_);
}

void HostFused::refuse(void*) {
  const std::int64_t number = next_call_++;
  try {
    publish_card(number, kRefused);
    last_refused_ = number;
  } catch (const Error& error) {
    // The caller is about to throw why it refused; later calls will tell this.
    poison_with(Error(error.code(), fmt::format("call {} (refused): {}", number, error.what())));
  }
}

// Card k overwrites card k - 2, which a peer may still have to read until it begins call k - 1. A
// rank that ran k - 1 has seen that; one that refused it waits for that here (rule 5).
void HostFused::publish_card(std::int64_t call, std::int64_t rows) {
  if (call - 1 == last_refused_) {
    window_.await_begun(call - 1, Deadline::after(options_.deadline));
  }
  window_.publish_card(call, rows);
}

const Bf16* HostFused::run(const FusedCall& call) {
  if (const std::string reason = poison(); !reason.empty()) {
    fail(ErrorCode::kPoisoned, "an earlier call failed: {}", reason);
  }
  const std::int64_t number = next_call_++;
  inject_before(number);
  InFlight flight(call, spec_, rank_, number, options_.deadline, pool_.threads());
  try {
    publish_card(number, call.x.rows);
    pool_.run([&](int worker) { work(flight, worker); });
  } catch (...) {
    flight.fail_with(std::current_exception());
  }
  if (copy_engine_ && flight.failed) copy_engine_->cancel();
  if (copy_engine_ && (flight.failed || call.timeline != nullptr)) copy_engine_->drain();
  if (!flight.failed) {
    return window_.at<Bf16>(rank_, output_row(number, 0));
  }
  try {
    std::rethrow_exception(flight.error);
  } catch (const Error& error) {
    const Error named(error.code(), fmt::format("call {}: {}", number, error.what()));
    poison_with(named);
    throw named;
  } catch (const std::exception& error) {
    const Error named(ErrorCode::kInternal, fmt::format("call {}: {}", number, error.what()));
    poison_with(named);
    throw named;
  }
}

void HostFused::work(InFlight& flight, int worker) {
  const std::int64_t tiles = flight.plan.tiles();
  const std::int64_t tasks = tiles + static_cast<std::int64_t>(flight.arrivals.size());
  bool peers_agree = false;
  try {
    while (!flight.failed) {
      const std::int64_t task = flight.next_task.fetch_add(1);
      if (task < flight.peer_tiles) {
        do_peer_tile(flight, flight.plan.tile(rank_, task), worker);
        continue;
      }
      // Rule 2, as the host's plans keep it: only from here on may anything wait for a peer.
      if (!peers_agree) {
        if (flight.number == faults_.kill_in_call) kill(getpid(), SIGKILL);
        window_.await_cards(flight.number, flight.call.x.rows, flight.deadline);
        peers_agree = true;
      }
      if (task >= tasks) return;
      if (task < tiles) {
        do_own_tile(flight, flight.plan.tile(rank_, task), worker);
      } else {
        const auto [owner, chunk] = flight.arrivals[static_cast<std::size_t>(task - tiles)];
        do_arrival(flight, owner, chunk, worker);
      }
    }
  } catch (...) {
    flight.fail_with(std::current_exception());
    window_.stop_waiting();
  }
}

void HostFused::multiply(InFlight& flight, const Tile& tile, int worker) {
  if (flight.number == faults_.throw_in_call) {
    fail(ErrorCode::kInternal, "rank {}: a fault hook ordered this call to fail", rank_);
  }
  flight.lanes[worker]->measure(
      Activity::kGemm, [&] { return label(tile); },
      [&] { gemm_.run(flight.call.x, flight.call.w, tile.rows, tile.cols, scratch_[worker]); });
}

void HostFused::do_peer_tile(InFlight& flight, const Tile& tile, int worker) {
  multiply(flight, tile, worker);
  const int peer = tile.band;
  const Range band = flight.plan.band(peer);
  const std::int64_t received =
      window_.layout().received_row(peer, rank_, tile.rows.begin - band.begin);
  const std::int64_t staged =
      window_.layout().staging_row(rank_, peer, tile.rows.begin - band.begin);
  Bf16* out = direct() ? window_.at<Bf16>(peer, received) : window_.at<Bf16>(rank_, staged);
  if (!direct() || moves_bytes(flight.number, tile.chunk)) {
    flight.lanes[worker]->measure(
        direct() ? Activity::kScatter : Activity::kGemm, [&] { return label(tile); },
        [&] {
          store_partial(scratch_[worker], tile.rows.size(), tile.cols.size(), out + tile.cols.begin,
                        spec_.cols);
        });
  }
  auto& left = flight.tiles_left[peer * spec_.chunks + tile.chunk];
  if (left.fetch_sub(1) != 1) return;

  const Range rows = flight.plan.chunk(peer, tile.chunk);
  std::vector<Piece> pieces;
  if (!direct()) {
    const std::int64_t first = rows.begin - band.begin;
    pieces.push_back({window_.layout().staging_row(rank_, peer, first),
                      window_.layout().received_row(peer, rank_, first),
                      rows.size() * spec_.cols * static_cast<std::int64_t>(sizeof(Bf16))});
  }
  send(flight, {Leg::kScatter, peer, tile.chunk, rows}, std::move(pieces), worker);
}

void HostFused::do_own_tile(InFlight& flight, const Tile& tile, int worker) {
  multiply(flight, tile, worker);
  for (int step = 1; step < spec_.world; ++step) {
    await(flight, Leg::kScatter, (rank_ + step) % spec_.world, tile.chunk, worker);
  }
  reduce(flight, tile, worker);
  if (direct() && !fp8()) store_at_peers(flight, tile, worker);
  if (flight.tiles_left[rank_ * spec_.chunks + tile.chunk].fetch_sub(1) == 1) {
    finish_own_chunk(flight, tile.chunk, worker);
  }
}

void HostFused::reduce(InFlight& flight, const Tile& tile, int worker) {
  const std::int64_t row = tile.rows.begin - flight.plan.band(rank_).begin;
  std::vector<const Bf16*> partials;
  for (int peer = 0; peer < spec_.world; ++peer) {
    partials.push_back(
        peer == rank_ ? nullptr
                      : window_.at<Bf16>(rank_, window_.layout().received_row(rank_, peer, row)) +
                            tile.cols.begin);
  }
  const Bf16* bias = flight.call.bias == nullptr ? nullptr : flight.call.bias + tile.cols.begin;
  Bf16* out = window_.at<Bf16>(rank_, output_row(flight.number, tile.rows.begin)) + tile.cols.begin;
  flight.lanes[worker]->measure(
      Activity::kReduce, [&] { return label(tile); },
      [&] {
        store_reduced(scratch_[worker], tile.rows.size(), tile.cols.size(), partials, rank_, bias,
                      out, spec_.cols);
      });
}

void HostFused::store_at_peers(InFlight& flight, const Tile& tile, int worker) {
  if (spec_.world == 1 || !moves_bytes(flight.number, tile.chunk)) return;
  flight.lanes[worker]->measure(
      Activity::kGather, [&] { return label(tile); },
      [&] {
        const auto bytes = static_cast<std::size_t>(tile.cols.size()) * sizeof(Bf16);
        for (int step = 1; step < spec_.world; ++step) {
          const int peer = (rank_ + step) % spec_.world;
          for (std::int64_t row = tile.rows.begin; row < tile.rows.end; ++row) {
            const std::int64_t at = output_row(flight.number, row);
            std::memcpy(window_.at<Bf16>(peer, at) + tile.cols.begin,
                        window_.at<Bf16>(rank_, at) + tile.cols.begin, bytes);
          }
        }
      });
}

void HostFused::finish_own_chunk(InFlight& flight, int chunk, int worker) {
  if (spec_.world == 1) return;
  const Range rows = flight.plan.chunk(rank_, chunk);
  std::vector<Piece> pieces;
  const auto same_place = [&](std::int64_t begin, std::int64_t end) {
    pieces.push_back({begin, begin, end - begin});
  };
  if (fp8()) {
    encode(flight, rows, worker);
    same_place(codes_row(rows.begin), codes_row(rows.end));
    same_place(scales_row(rows.begin), scales_row(rows.end));
  } else if (!direct()) {  // direct has stored each tile at the peers already
    same_place(output_row(flight.number, rows.begin), output_row(flight.number, rows.end));
  }
  for (int step = 1; step < spec_.world; ++step) {
    send(flight, {Leg::kGather, (rank_ + step) % spec_.world, chunk, rows}, pieces, worker);
  }
}

// Every rank, the owner too, ends with what the codes say: the same bits everywhere.
void HostFused::encode(InFlight& flight, Range rows, int worker) {
  flight.lanes[worker]->measure(
      Activity::kReduce, [&] { return "encode " + label(rank_, 0, rows); },
      [&] {
        for (std::int64_t row = rows.begin; row < rows.end; ++row) {
          Bf16* values = window_.at<Bf16>(rank_, output_row(flight.number, row));
          E4m3* codes = window_.at<E4m3>(rank_, codes_row(row));
          float* scales = window_.at<float>(rank_, scales_row(row));
          encode_row(values, spec_.cols, gather_group_, codes, scales);
          decode_row(codes, scales, spec_.cols, gather_group_, values);
        }
      });
}

void HostFused::do_arrival(InFlight& flight, int owner, int chunk, int worker) {
  await(flight, Leg::kGather, owner, chunk, worker);
  if (!fp8()) return;
  const Range rows = flight.plan.chunk(owner, chunk);
  flight.lanes[worker]->measure(
      Activity::kWiden, [&] { return label(owner, chunk, rows); },
      [&] {
        for (std::int64_t row = rows.begin; row < rows.end; ++row) {
          decode_row(window_.at<E4m3>(rank_, codes_row(row)),
                     window_.at<float>(rank_, scales_row(row)), spec_.cols, gather_group_,
                     window_.at<Bf16>(rank_, output_row(flight.number, row)));
        }
      });
}

void HostFused::send(InFlight& flight, const Chunk& chunk, std::vector<Piece> pieces, int worker) {
  const auto move_and_publish = [this, chunk, pieces = std::move(pieces),
                                 number = flight.number](Recorder& lane) {
    inject_before_hand_over();
    if (!pieces.empty() && moves_bytes(number, chunk.index)) {
      const bool scatter = chunk.leg == Leg::kScatter;
      lane.measure(
          scatter ? Activity::kScatter : Activity::kGather,
          [&] {
            return fmt::format("to rank {}: {}", chunk.peer,
                               label(scatter ? chunk.peer : rank_, chunk.index, chunk.rows));
          },
          [&] {
            for (const Piece& piece : pieces) {
              std::memcpy(window_.at(chunk.peer, piece.to), window_.at(rank_, piece.from),
                          static_cast<std::size_t>(piece.bytes));
            }
          });
    }
    if (number >= faults_.drop_transfers_from) return;
    window_.publish(chunk.leg, chunk.peer, chunk.index, number);
  };
  if (direct()) {
    move_and_publish(*flight.lanes[worker]);
  } else {
    copy_engine_->enqueue([move_and_publish, lane = flight.copy_lane] { move_and_publish(*lane); });
  }
}

void HostFused::await(InFlight& flight, Leg leg, int peer, int chunk, int worker) {
  if (window_.arrived(leg, peer, chunk, flight.number)) return;
  flight.lanes[worker]->measure(
      Activity::kWait,
      [&] { return fmt::format("{}: chunk {} from rank {}", leg_name(leg), chunk, peer); },
      [&] {
        window_.await(leg, peer, chunk, flight.number,
                      leg == Leg::kScatter ? flight.deadline : flight.gather_deadline);
      });
}

std::int64_t HostFused::output_row(std::int64_t call, std::int64_t row) const {
  const std::int64_t slot = call % spec_.slots;
  return window_.layout().output +
         (slot * spec_.max_rows + row) * spec_.cols * static_cast<std::int64_t>(sizeof(Bf16));
}

std::int64_t HostFused::codes_row(std::int64_t row) const {
  return window_.layout().gather_codes + row * spec_.cols;
}

std::int64_t HostFused::scales_row(std::int64_t row) const {
  const WindowLayout& layout = window_.layout();
  return layout.gather_scales +
         row * layout.scale_row_stride * static_cast<std::int64_t>(sizeof(float));
}

void HostFused::inject_before(std::int64_t call) const {
  if (call == faults_.delay_call || call >= faults_.delay_from) {
    std::this_thread::sleep_for(faults_.delay);
  }
}

void HostFused::inject_before_hand_over() const {
  if (faults_.jitter.count() == 0) return;
  thread_local std::minstd_rand random(std::random_device{}());
  std::this_thread::sleep_for(
      std::chrono::microseconds(random() % static_cast<std::uint64_t>(faults_.jitter.count())));
}

bool HostFused::moves_bytes(std::int64_t call, int chunk) const {
  if (call >= faults_.drop_transfers_from) return false;
  return call < faults_.skip_transfers_from || chunk != faults_.skip_only_chunk.value_or(chunk);
}

}  // namespace rowband::host
