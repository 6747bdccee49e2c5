#include "rowband/cli/trace_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "rowband/base/fail.h"
#include "rowband/cli/ranks.h"

namespace rowband::cli {
namespace {

using nlohmann::json;

std::vector<std::uint8_t> encode(const Timeline& timeline) {
  json events = json::array();
  for (const TimelineEvent& e : timeline.events()) {
    events.push_back({e.rank, e.lane, static_cast<int>(e.activity), e.label, e.begin_ns, e.end_ns});
  }
  return json::to_cbor(events);
}

std::vector<TimelineEvent> decode(std::span<const std::uint8_t> bytes) {
  std::vector<TimelineEvent> events;
  for (const json& e : json::from_cbor(bytes)) {
    events.push_back({e[0].get<int>(), e[1].get<std::string>(),
                      static_cast<Activity>(e[2].get<int>()), e[3].get<std::string>(),
                      e[4].get<std::int64_t>(), e[5].get<std::int64_t>()});
  }
  return events;
}

}  // namespace

std::unique_ptr<Timeline> gather_timeline(Communicator& comm, const Timeline& own,
                                          Deadline deadline) {
  std::vector<std::uint8_t> bytes = encode(own);
  const auto sizes = gather(comm, bytes.size(), deadline);
  const std::size_t largest = std::ranges::max(sizes);
  bytes.resize(largest);
  std::vector<std::uint8_t> all(largest * sizes.size());
  comm.all_gather(bytes.data(), all.data(), largest, deadline);
  auto timeline = std::make_unique<Timeline>();
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    timeline->add(decode(std::span(all).subspan(rank * largest, sizes[rank])));
  }
  return timeline;
}

std::filesystem::path perfetto_path(const std::filesystem::path& svg) {
  std::filesystem::path path = svg;
  return path.replace_extension(".perfetto.json");
}

void write_trace_files(const Timeline& timeline, const std::string& title,
                       const std::filesystem::path& svg) {
  write_timeline_svg(timeline, title, svg);
  write_timeline_perfetto(timeline, perfetto_path(svg));
}

void require_svg_name(const std::string& option, const std::filesystem::path& path) {
  if (path.extension() != ".svg") {
    fail(ErrorCode::kInvalidArgument, "{} {}: the name must end in .svg", option, path.string());
  }
}

}  // namespace rowband::cli
