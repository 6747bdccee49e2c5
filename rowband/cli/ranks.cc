#include "rowband/cli/ranks.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <span>

#include "rowband/base/fail.h"
#include "rowband/cli/devices.h"
#include "rowband/cli/digest.h"
#include "rowband/cli/error_report.h"
#include "rowband/comm/mpi.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/host/machine.h"

namespace rowband::cli {
namespace {

constexpr int kMaxRanks = 64;

// A number that the launcher left in the environment, under one of the names that launchers use.
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

int launched_processes() {
  if (const auto size = launcher_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"})) return *size;
  return make_mpi_world_communicator()->size();
}

// A word that all processes see: who met the first error, and the exit status that it means.
class ErrorBoard {
 public:
  explicit ErrorBoard(Communicator& comm)
      : memory_(comm.allocate_symmetric(sizeof(std::uint32_t), Deadline::after(kDefaultDeadline))) {
  }

  // True for the first caller of all processes.
  bool claim(int exit_code) {
    std::uint32_t nobody = 0;
    return word().compare_exchange_strong(nobody, static_cast<std::uint32_t>(exit_code));
  }
  int exit_code() const { return static_cast<int>(word().load()); }

 private:
  std::atomic_ref<std::uint32_t> word() const {
    return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(memory_->part(0)));
  }
  std::unique_ptr<SymmetricMemory> memory_;
};

int run_on_processes(const std::function<int(Communicator&)>& body) {
  const auto comm = make_mpi_world_communicator();
  ErrorBoard board(*comm);
  try {
    const int own = body(*comm);
    return std::ranges::max(gather(*comm, own, Deadline::after(kDefaultDeadline)));
  } catch (...) {
    const ErrorReport report = report_of(std::current_exception());
    if (board.claim(report.exit_code)) {
      print_error(report, fmt::format("rank {}", comm->rank()));
    }
    throw ErrorShown(board.exit_code());
  }
}

int run_on_threads(int world, const std::function<int(Communicator&)>& body) {
  std::vector<int> statuses(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    statuses[static_cast<std::size_t>(comm.rank())] = body(comm);
  });
  return std::ranges::max(statuses);
}

std::uint64_t digest_of_text(std::string_view text) {
  return digest_of(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace

int world_size(std::optional<int> asked, int by_default) {
  if (started_by_mpi()) {
    const int processes = launched_processes();
    if (asked && *asked != processes) {
      fail(ErrorCode::kInvalidArgument,
           "--ranks {}: mpirun started {} process{}, each of which is a rank; leave --ranks out or "
           "make the two equal",
           *asked, processes, processes == 1 ? "" : "es");
    }
    return processes;
  }
  const int world = asked.value_or(by_default);
  if (world < 1 || world > kMaxRanks) {
    fail(ErrorCode::kInvalidArgument, "--ranks {}: must be from 1 to {}", world, kMaxRanks);
  }
  return world;
}

bool is_first_process() {
  return launcher_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}).value_or(0) == 0;
}

int run_on_ranks(int world, const std::function<int(Communicator&)>& body) {
  return started_by_mpi() ? run_on_processes(body) : run_on_threads(world, body);
}

std::shared_ptr<Engine> make_rank_engine(Communicator& comm, const EngineFlags& flags,
                                         Deadline deadline) {
  // mpirun may bind each process to cores of its own.
  const auto masks = gather(comm, digest_of_text(host::allowed_cores_text()), deadline);
  const auto own = masks.begin() + comm.rank();
  return load_on_every_rank(comm, "the engine", deadline, [&]() -> std::shared_ptr<Engine> {
    EngineOptions options{.threads = flags.threads,
                          .local_ranks = static_cast<int>(std::ranges::count(masks, *own)),
                          .local_rank = static_cast<int>(std::count(masks.begin(), own, *own)),
                          .gemm_kernel = flags.gemm_kernel};
    if (flags.kind() == EngineKind::kCuda) deal_gpus(comm.rank(), comm.size(), options);
    return make_engine(flags.kind(), comm.rank(), options);
  });
}

void agree_on_error(Communicator& comm, std::string_view what, const std::optional<Error>& error,
                    Deadline deadline) {
  struct Told {
    std::uint64_t digest;
    int failed;
    int code;
  };
  const std::string message = error ? error->what() : "";
  const auto told = gather(
      comm,
      Told{digest_of_text(message), error.has_value(), error ? static_cast<int>(error->code()) : 0},
      deadline);
  const auto first = std::ranges::find_if(told, [](const Told& t) { return t.failed != 0; });
  if (first == told.end()) return;
  const bool alike = std::ranges::all_of(
      told, [&](const Told& t) { return t.failed != 0 && t.digest == first->digest; });
  if (alike) throw *error;
  agree_on_success(comm, what, message, static_cast<ErrorCode>(first->code), deadline);
}

}  // namespace rowband::cli
