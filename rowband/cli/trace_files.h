// The timeline of a call, from all ranks, as files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "rowband/comm/communicator.h"
#include "rowband/trace/timeline.h"

namespace rowband::cli {

// Every rank's events in one timeline, on every rank. Collective.
std::unique_ptr<Timeline> gather_timeline(Communicator& comm, const Timeline& own,
                                          Deadline deadline);

// Where the Perfetto trace beside the picture `svg` goes: x.svg gets x.perfetto.json.
std::filesystem::path perfetto_path(const std::filesystem::path& svg);

// Writes the picture and the trace beside it.
void write_trace_files(const Timeline& timeline, const std::string& title,
                       const std::filesystem::path& svg);

// Throws Error(kInvalidArgument) unless the name ends in .svg.
void require_svg_name(const std::string& option, const std::filesystem::path& path);

}  // namespace rowband::cli
