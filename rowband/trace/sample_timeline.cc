#include "rowband/trace/sample_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

namespace rowband {
namespace {

constexpr std::int64_t kStartNs = 8'123'456'789'000;
constexpr std::int64_t kTileNs = 21'000;
constexpr std::int64_t kReduceNs = 4'000;
constexpr std::int64_t kTransferNs = 70'000;  // a chunk
constexpr std::int64_t kPeerSkewNs = 40'000;  // until a peer's chunk can be seen

class RankSampler {
 public:
  RankSampler(const SampleShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        random_(static_cast<unsigned>(rank) + 1),
        copies_free_ns_(kStartNs) {
    const std::int64_t start = kStartNs + rank * 15'000;
    workers_free_ns_.assign(static_cast<std::size_t>(shape.workers), start);
  }

  std::vector<TimelineEvent> sample() {
    for (int step = 1; step < shape_.ranks; ++step) {
      const int band = (rank_ + step) % shape_.ranks;
      for (int chunk = 0; chunk < shape_.chunks_per_band; ++chunk) {
        transfer(Activity::kScatter, band, chunk, compute(band, chunk));
      }
    }
    wait_for_arrivals();
    for (int chunk = 0; chunk < shape_.chunks_per_band; ++chunk) {
      transfer(Activity::kGather, rank_, chunk, compute(rank_, chunk));
    }
    return std::move(events_);
  }

 private:
  std::int64_t vary(std::int64_t ns) {
    return ns + std::uniform_int_distribution<std::int64_t>(-ns / 10, ns / 10)(random_);
  }

  void add(const std::string& lane, Activity activity, std::string label, std::int64_t begin,
           std::int64_t end) {
    events_.push_back({rank_, lane, activity, std::move(label), begin, end});
  }

  // Returns when the chunk is done.
  std::int64_t compute(int band, int chunk) {
    for (int worker = 0; worker < shape_.workers; ++worker) {
      const std::string lane = fmt::format("worker {}", worker);
      std::int64_t& now = workers_free_ns_[static_cast<std::size_t>(worker)];
      for (int tile = 0; tile < shape_.tiles_per_chunk; ++tile) {
        const std::string label = fmt::format("band {} chunk {} tile {}", band, chunk, tile);
        const std::int64_t computed = now + vary(kTileNs);
        add(lane, Activity::kGemm, label, now, computed);
        now = computed + 200;
        if (band != rank_) continue;
        const std::int64_t reduced = now + vary(kReduceNs);
        add(lane, Activity::kReduce, label, now, reduced);
        now = reduced + 200;
      }
    }
    return *std::max_element(workers_free_ns_.begin(), workers_free_ns_.end());
  }

  void transfer(Activity activity, int band, int chunk, std::int64_t ready) {
    const std::int64_t begin = std::max(ready, copies_free_ns_) + 2'000;
    copies_free_ns_ = begin + vary(kTransferNs);
    add("copy thread", activity, fmt::format("band {} chunk {}", band, chunk), begin,
        copies_free_ns_);
  }

  void wait_for_arrivals() {
    for (int worker = 0; worker < shape_.workers; ++worker) {
      std::int64_t& now = workers_free_ns_[static_cast<std::size_t>(worker)];
      const std::int64_t arrived = now + vary(kPeerSkewNs);
      add(fmt::format("worker {}", worker), Activity::kWait, "band arrivals", now, arrived);
      now = arrived;
    }
  }

  SampleShape shape_;
  int rank_;
  std::mt19937 random_;
  std::vector<std::int64_t> workers_free_ns_;
  std::int64_t copies_free_ns_;
  std::vector<TimelineEvent> events_;
};

}  // namespace

std::vector<TimelineEvent> sample_timeline(const SampleShape& shape) {
  std::vector<TimelineEvent> events;
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const std::vector<TimelineEvent> of_rank = RankSampler(shape, rank).sample();
    events.insert(events.end(), of_rank.begin(), of_rank.end());
  }
  return events;
}

}  // namespace rowband
