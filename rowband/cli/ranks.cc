#include "rowband/cli/ranks.h"

#include <algorithm>
#include <atomic>
#include <span>

#include "rowband/base/fail.h"
#include "rowband/cli/devices.h"
#include "rowband/cli/digest.h"
#include "rowband/cli/error_report.h"
#include "rowband/cli/launcher.h"
#include "rowband/cli/rank_processes.h"
#include "rowband/comm/mpi.h"
#include "rowband/comm/threads.h"
#include "rowband/engines/host/machine.h"

namespace rowband::cli {
namespace {

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

// Each process shows its own error: there is nothing yet to find out whose was first.
std::unique_ptr<Communicator> make_process_communicator() {
  if (launcher() == Launcher::kMpi) return make_mpi_world_communicator();
  try {
    return make_tcp_communicator(launched_rendezvous());
  } catch (const Error&) {
    const ErrorReport report = report_of(std::current_exception());
    print_error(report, fmt::format("rank {}", launched_rank()));
    throw ErrorShown(report.exit_code);
  }
}

int run_on_processes(const std::function<int(Communicator&)>& body) {
  const auto comm = make_process_communicator();
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
  if (launcher() != Launcher::kNone) {
    const int processes = launched_processes();
    if (asked && *asked != processes) {
      fail(ErrorCode::kInvalidArgument,
           "--ranks {}: {} started {} process{}, each of which is a rank; leave --ranks out or "
           "make the two equal",
           *asked, launcher() == Launcher::kMpi ? "mpirun" : "torchrun", processes,
           processes == 1 ? "" : "es");
    }
    return processes;
  }
  const int world = asked.value_or(by_default);
  if (world < 1 || world > kMaxRanks) {
    fail(ErrorCode::kInvalidArgument, "--ranks {}: must be from 1 to {}", world, kMaxRanks);
  }
  return world;
}

bool is_first_process() { return launched_rank() == 0; }

std::optional<int> run_in_own_processes(int world, const EngineFlags& flags) {
  if (launcher() != Launcher::kNone || world == 1) return std::nullopt;
  const RanksAs as = flags.ranks_as.value_or(ranks_by_default(world, flags.kind()));
  if (as == RanksAs::kThreads) return std::nullopt;
  return run_rank_processes(world);
}

std::string ranks_text(const Communicator& comm) {
  if (comm.kind() == "threads") return "threads";
  return launcher() == Launcher::kMpi ? "processes of mpirun" : "processes";
}

int run_on_ranks(int world, const std::function<int(Communicator&)>& body) {
  return launcher() == Launcher::kNone ? run_on_threads(world, body) : run_on_processes(body);
}

std::shared_ptr<Engine> make_rank_engine(Communicator& comm, const EngineFlags& flags,
                                         Deadline deadline) {
  // A launcher may bind each process to cores of its own.
  const auto masks = gather(comm, digest_of_text(host::allowed_cores_text()), deadline);
  const auto own = masks.begin() + comm.rank();
  return load_on_every_rank(comm, "the engine", deadline, [&]() -> std::shared_ptr<Engine> {
    EngineOptions options{.threads = flags.threads,
                          .local_ranks = static_cast<int>(std::ranges::count(masks, *own)),
                          .local_rank = static_cast<int>(std::count(masks.begin(), own, *own)),
                          .gemm_kernel = flags.gemm_kernel};
    if (flags.kind() == EngineKind::kCuda) deal_gpus(comm, options);
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
