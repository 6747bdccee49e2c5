// Faults that tests order. They are reached only through a FaultHooks object handed over in C++; no
// variable, flag or file can set one. Not installed.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace rowband {

inline constexpr std::int64_t kNever = INT64_MAX;

// Calls are counted from 1, construction's included.
struct FaultHooks {
  bool fail_window_allocation = false;
  bool register_null_window = false;            // NCCL: registers with success and gives no window
  bool deny_peer_access = false;                // GPU engines: the peers' memory is out of reach
  std::optional<std::int64_t> available_bytes;  // what the machine claims to have free
  std::int64_t first_call = 1;                  // number of the first call, to start near a wrap

  std::int64_t skip_transfers_from = kNever;  // flags are set, bytes are not moved
  std::optional<int> skip_only_chunk;         // of every band; without it, of all chunks
  std::int64_t drop_transfers_from = kNever;  // neither
  std::int64_t delay_call = kNever;           // this call starts `delay` late
  std::int64_t delay_from = kNever;           // so does every call from here on
  std::chrono::microseconds delay{0};
  std::chrono::microseconds jitter{0};  // a random wait up to this long before each hand-over
  std::size_t late_copies = 0;  // GPU engines' copy_engine: so many bytes travel before each chunk
  std::int64_t throw_in_call = kNever;  // the first tile of this call throws; on GPUs, its launch
  std::int64_t kill_in_call = kNever;   // SIGKILL to this process after the peers' tiles

  // No faults: every call in tiles of this height; on GPUs, with so many pieces on their way to the
  // peers at one time, W - 1 at least.
  std::optional<std::int64_t> tile_rows;
  std::optional<int> pieces_on_link;
};

}  // namespace rowband
