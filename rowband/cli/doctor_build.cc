#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <hwy/highway.h>
#include <spdlog/version.h>
#include <CLI/CLI.hpp>
#ifdef ROWBAND_HAVE_MPI
#include <mpi.h>
#endif

#include <algorithm>
#include <array>
#include <string_view>

#include "rowband/base/error.h"
#include "rowband/cli/blas.h"
#include "rowband/cli/build_info.h"
#include "rowband/cli/doctor.h"
#include "rowband/cli/launcher.h"
#include "rowband/comm/nccl_comm.h"
#include "rowband/engines/engine.h"
#include "rowband/engines/host/tile_gemm.h"
#include "rowband/layer/row_parallel_linear.h"

extern char** environ;

namespace rowband::cli {
namespace {

using nlohmann::ordered_json;

// What the layer and this program read.
constexpr std::array<std::string_view, 13> kVariables = {
    "ROWBAND_CHUNKS",   "ROWBAND_DEADLINE",     "ROWBAND_DEBUG_CHECK", "ROWBAND_FP8_GATHER",
    "ROWBAND_FUSE",     "ROWBAND_GATHER_SCALE", "ROWBAND_LOG",         "ROWBAND_MASTER_PORT",
    "ROWBAND_MAX_ROWS", "ROWBAND_MIN_FILL",     "ROWBAND_MIN_ROWS",    "ROWBAND_SHAPE_LOG",
    "ROWBAND_TRANSPORT"};

std::string mpi_text() {
#ifdef ROWBAND_HAVE_MPI
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "unknown version";
  const std::string_view version(text, static_cast<std::size_t>(length));
  return std::string(version.substr(0, version.find(',')));
#else
  return "not in this build";
#endif
}

std::string nccl_text() {
  const std::string why = comm::why_no_nccl();
  return why.empty() ? comm::nccl_version() : why;
}

std::string_view launcher_text() {
  switch (launcher()) {
    case Launcher::kMpi:
      return "mpirun";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kNone:
      return "no launcher of ranks";
  }
  return "unknown";
}

std::string why_environment_is_refused() {
  try {
    LayerOptions::from_environment();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string default_engine_text() {
  try {
    return std::string(engine_name(default_engine()));
  } catch (const Error& error) {
    return error.what();
  }
}

std::string hwloc_version_text() {
  const unsigned version = hwloc_get_api_version();
  return fmt::format("API {}.{}.{}", version >> 16, (version >> 8) & 0xFF, version & 0xFF);
}

}  // namespace

ordered_json describe_engine() {
  std::vector<std::string_view> kernels;
  for (const auto& kernel : host::supported_tile_gemms()) kernels.push_back(kernel.name);
  return {{"SIMD targets",
           [] {
             std::vector<std::string> names;
             for (std::int64_t rest = hwy::SupportedTargets() & HWY_TARGETS; rest != 0;
                  rest &= rest - 1) {
               names.push_back(hwy::TargetName(rest & -rest));
             }
             return fmt::format("{}", fmt::join(names, " "));
           }()},
          {"GEMM kernels, best first", fmt::format("{}", fmt::join(kernels, " "))},
          {"GEMM kernel chosen", kernels.front()},
          {"engine when none is asked for", default_engine_text()},
          {"started by", launcher_text()}};
}

ordered_json describe_build() {
  return {{"rowband", kVersion},
          {"compiler", kCompiler},
          {"build type", kBuildType},
          {"flags", kCompileFlags},
          {"sanitizers", *kSanitizers == '\0' ? "none" : kSanitizers},
          {"MPI", mpi_text()},
          {"NCCL", nccl_text()},
          {"OpenBLAS", blas_description()}};
}

ordered_json describe_libraries() {
  return {{"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
                              FMT_VERSION % 100)},
          {"spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
          {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                        NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
          {"CLI11", CLI11_VERSION},
          {"highway", fmt::format("{}.{}.{}", HWY_MAJOR, HWY_MINOR, HWY_PATCH)},
          {"hwloc", hwloc_version_text()}};
}

ordered_json describe_environment() {
  ordered_json json = ordered_json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("ROWBAND_")) continue;
    const bool known = std::ranges::find(kVariables, name) != kVariables.end();
    json[std::string(name)] =
        fmt::format("'{}'{}", text.substr(std::min(text.size(), name.size() + 1)),
                    known ? "" : " (no variable of this library)");
  }
  const std::string why = why_environment_is_refused();
  json["ROWBAND_* in force"] = why.empty() ? "valid" : "REFUSED: " + why;
  json["ROWBAND_* that exist"] = fmt::format("{}", fmt::join(kVariables, " "));
  return json;
}

}  // namespace rowband::cli
