// The ranks of a command: threads of this process, processes that it starts, or those that mpirun
// or torchrun started.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "rowband/cli/options.h"
#include "rowband/comm/communicator.h"
#include "rowband/engines/engine.h"

namespace rowband::cli {

// An error that was printed already, by this process or by a peer.
class ErrorShown : public std::runtime_error {
 public:
  explicit ErrorShown(int exit_code)
      : std::runtime_error("an error that was shown"), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

// How many ranks there will be. Throws Error(kInvalidArgument) when `asked` is out of range or
// differs from the number of the launcher's processes.
int world_size(std::optional<int> asked, int by_default);

// False in every process of a launcher but the first: only that one prints.
bool is_first_process();

// Where the ranks are to be processes and nobody has started them, runs this command again in a
// process per rank and returns the exit status. Nothing where this process runs the ranks, or is
// one.
std::optional<int> run_in_own_processes(int world, const EngineFlags& flags);

// What the ranks are: "threads", "processes of mpirun", "processes".
std::string ranks_text(const Communicator& comm);

// Runs body(comm) on every rank and returns the largest of their exit statuses. The first error in
// time, of any rank, is the one that is shown: thrown here or, between processes, printed by the
// rank that met it and thrown as ErrorShown by all. A rank that fails lets go of its communicator,
// so that its peers do not wait for it.
int run_on_ranks(int world, const std::function<int(Communicator&)>& body);

// This rank's engine; ranks that may use the same cores share them. Collective.
std::shared_ptr<Engine> make_rank_engine(Communicator& comm, const EngineFlags& flags,
                                         Deadline deadline);

// What this rank failed with, or nothing; when any rank failed, throws on every rank: the error
// itself when all failed alike, else each failing rank's reason. Collective.
void agree_on_error(Communicator& comm, std::string_view what, const std::optional<Error>& error,
                    Deadline deadline);

// load() on every rank; throws on every rank when any could not. Collective.
template <typename Load>
auto load_on_every_rank(Communicator& comm, std::string_view what, Deadline deadline, Load load) {
  std::optional<decltype(load())> loaded;
  std::optional<Error> error;
  try {
    loaded.emplace(load());
  } catch (const Error& failure) {
    error = failure;
  }
  agree_on_error(comm, what, error, deadline);
  return std::move(*loaded);
}

// One value of every rank, by rank. Collective.
template <typename T>
std::vector<T> gather(Communicator& comm, const T& value, Deadline deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&value, all.data(), sizeof(T), deadline);
  return all;
}

}  // namespace rowband::cli
