#include "rowband/cli/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "rowband/base/fail.h"
#include "rowband/cli/rank_processes.h"
#include "rowband/comm/mpi.h"
#include "rowband/layer/environment.h"

namespace rowband::cli {
namespace {

// A number that a launcher left in the environment, under one of the names that launchers use.
std::optional<int> launcher_number(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    int value = 0;
    const char* end = text + std::strlen(text);
    if (std::from_chars(text, end, value).ptr == end) return value;
  }
  return std::nullopt;
}

int required(const char* name, std::int64_t least, std::int64_t most) {
  const auto value = environment_integer(name, least, most);
  if (!value) {
    fail(ErrorCode::kInvalidArgument,
         "{} is not set, but RANK and WORLD_SIZE are: torchrun sets all of RANK, WORLD_SIZE, "
         "LOCAL_RANK, MASTER_ADDR and MASTER_PORT; unset RANK for ranks as threads",
         name);
  }
  return static_cast<int>(*value);
}

}  // namespace

Launcher launcher() {
  if (started_by_mpi()) return Launcher::kMpi;
  const bool told = std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr;
  return told ? Launcher::kTorchrun : Launcher::kNone;
}

int launched_rank() {
  switch (launcher()) {
    case Launcher::kMpi:
      return launcher_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}).value_or(0);
    case Launcher::kTorchrun:
      return launcher_number({"RANK"}).value_or(0);
    case Launcher::kNone:
      return 0;
  }
  return 0;
}

int launched_local_rank(int rank) {
  switch (launcher()) {
    case Launcher::kMpi:
      return launcher_number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}).value_or(rank);
    case Launcher::kTorchrun:
      return launcher_number({"LOCAL_RANK"}).value_or(rank);
    case Launcher::kNone:
      return rank;
  }
  return rank;
}

int launched_processes() {
  if (launcher() == Launcher::kTorchrun) return required("WORLD_SIZE", 1, kMaxRanks);
  if (const auto size = launcher_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})) return *size;
  return make_mpi_world_communicator()->size();
}

TcpRendezvous launched_rendezvous() {
  const int size = required("WORLD_SIZE", 1, kMaxRanks);
  const int rank = required("RANK", 0, size - 1);
  const auto host = environment_text("MASTER_ADDR");
  if (!host) required("MASTER_ADDR", 0, 0);
  TcpRendezvous rendezvous =
      torchrun_rendezvous(rank, size, *host, required("MASTER_PORT", 1, 65534));
  if (const auto port = environment_integer(kPortVariable, 1, 65535)) {
    rendezvous.port = static_cast<int>(*port);
  }
  if (rank == 0) {
    if (const auto listener = environment_integer(kListenerVariable, 3, 1 << 20)) {
      rendezvous.listener = static_cast<int>(*listener);
    }
  }
  return rendezvous;
}

}  // namespace rowband::cli
