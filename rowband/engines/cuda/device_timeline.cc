#include "rowband/engines/cuda/device_timeline.h"

#include <chrono>
#include <vector>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"

namespace rowband::cuda {
namespace {

constexpr std::int64_t kPatienceNs = 1'000'000'000;

std::int64_t host_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TimelineEvent translate(const DeviceEvent& e, int rank, std::int64_t offset) {
  TimelineEvent event;
  event.rank = rank;
  event.begin_ns = static_cast<std::int64_t>(e.begin_ns) + offset;
  event.end_ns = static_cast<std::int64_t>(e.end_ns) + offset;
  const bool own = e.band == rank;
  const auto chunk = fmt::format("band {} chunk {}", e.band, e.chunk);
  const auto tile = fmt::format("{} row {} col {}", chunk, e.row, e.col);
  event.label = tile;
  event.lane = fmt::format("cluster {}", e.cluster);
  switch (e.kind) {
    case DeviceEvent::kMultiply:
      event.activity = Activity::kGemm;
      break;
    case DeviceEvent::kHandOver:
      event.activity = own ? Activity::kReduce : Activity::kScatter;
      break;
    case DeviceEvent::kWiden:
      event.activity = Activity::kWiden;
      break;
    case DeviceEvent::kSend:
      event.activity = own ? Activity::kGather : Activity::kScatter;
      event.lane = own ? "gather to all" : fmt::format("scatter to rank {}", e.band);
      event.label = chunk;
      break;
    case DeviceEvent::kArrival:
      event.activity = Activity::kWait;
      event.lane = fmt::format("results of rank {}", e.band);
      event.label = chunk;
      break;
    default:
      fail(ErrorCode::kInternal, "a device event of kind {}", e.kind);
  }
  return event;
}

}  // namespace

DeviceTimeline::DeviceTimeline(std::uint32_t capacity)
    : capacity_(capacity),
      events_(allocate_device(capacity * sizeof(DeviceEvent))),
      count_(allocate_device(sizeof(std::uint32_t))),
      exchange_(allocate_pinned(sizeof(ClockExchange))) {}

void DeviceTimeline::point(FusedArguments& a) const {
  a.events = static_cast<DeviceEvent*>(events_.get());
  a.event_count = static_cast<std::uint32_t*>(count_.get());
  a.event_capacity = capacity_;
}

std::int64_t DeviceTimeline::host_minus_device_ns(cudaStream_t stream) {
  auto* exchange = static_cast<volatile ClockExchange*>(exchange_.get());
  exchange->device_ns = 0;
  exchange->running = 0;
  exchange->asked = 0;
  launch_clock_exchange(static_cast<ClockExchange*>(exchange_.get()), stream);
  const std::int64_t end = host_ns() + kPatienceNs;
  while (exchange->running == 0 && host_ns() < end) {
  }
  const std::int64_t before = host_ns();
  exchange->asked = 1;
  while (exchange->device_ns == 0 && host_ns() < end) {
  }
  const std::int64_t after = host_ns();
  check(cudaStreamSynchronize(stream), "exchanging clocks with the device");
  if (exchange->device_ns == 0) fail(ErrorCode::kDeadline, "the device's clock did not answer");
  return (before + after) / 2 - static_cast<std::int64_t>(exchange->device_ns);
}

bool DeviceTimeline::launches_block(cudaStream_t stream) {
  auto* exchange = static_cast<volatile ClockExchange*>(exchange_.get());
  exchange->device_ns = 0;
  exchange->running = 0;
  exchange->asked = 0;
  launch_clock_exchange(static_cast<ClockExchange*>(exchange_.get()), stream);
  const bool ended = cudaStreamQuery(stream) == cudaSuccess;  // it goes on until it is asked
  exchange->asked = 1;
  check(cudaStreamSynchronize(stream), "finding out whether launches block");
  return ended;
}

void DeviceTimeline::collect(Timeline& timeline, int rank, cudaStream_t stream) {
  // A copy queued behind a kernel that waits for a peer would hold up the copies of a peer that
  // shares this device.
  check(cudaStreamSynchronize(stream), "waiting for a traced call");
  std::uint32_t count = 0;
  check(cudaMemcpyAsync(&count, count_.get(), sizeof count, cudaMemcpyDeviceToHost, stream),
        "reading the number of events");
  check(cudaMemsetAsync(count_.get(), 0, sizeof count, stream), "resetting the events");
  check(cudaStreamSynchronize(stream), "reading the number of events");
  if (count > capacity_) {
    fail(ErrorCode::kInternal, "a traced call made {} events, there was room for {}", count,
         capacity_);
  }
  std::vector<DeviceEvent> events(count);
  check(cudaMemcpyAsync(events.data(), events_.get(), count * sizeof(DeviceEvent),
                        cudaMemcpyDeviceToHost, stream),
        "reading the events");
  check(cudaStreamSynchronize(stream), "waiting for the events");
  const std::int64_t offset = host_minus_device_ns(stream);
  std::vector<TimelineEvent> translated;
  translated.reserve(count);
  for (const DeviceEvent& event : events) translated.push_back(translate(event, rank, offset));
  timeline.add(std::move(translated));
}

}  // namespace rowband::cuda
