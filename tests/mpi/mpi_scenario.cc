// One rank of a scenario in which something goes wrong; scenarios_test.sh runs it under mpirun.
// A rank that saw what it should prints "ok" and its rank.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/conformance.h"
#include "rowband/comm/mpi.h"

namespace {

using namespace std::chrono_literals;
using rowband::Bf16;
using rowband::Communicator;
using rowband::Deadline;
using rowband::Error;
using rowband::ErrorCode;
using rowband::fail;
using rowband::comm::conformance::expect_error;
using rowband::comm::conformance::soon;
using Scenario = std::function<void(std::unique_ptr<Communicator>)>;

void say_ok(int rank, const std::string& what) {
  std::printf("ok rank %d: %s\n", rank, what.c_str());
  std::fflush(stdout);
}

// Holds a window until it is killed.
void hold(std::unique_ptr<Communicator> comm) {
  const auto window = comm->allocate_symmetric(4 << 20, soon());
  window->part(comm->rank())[0] = std::byte{1};
  comm->barrier(soon());
  std::printf("pid %d holds\n", static_cast<int>(getpid()));
  std::fflush(stdout);
  for (;;) pause();
}

// More than a /dev/shm of 64 MiB holds, then a little.
void overfull(std::unique_ptr<Communicator> comm) {
  const auto message = expect_error(ErrorCode::kOutOfMemory, {"/dev/shm", "free"},
                                    [&] { comm->allocate_symmetric(60 << 20, soon()); });
  comm->allocate_symmetric(1 << 20, soon());
  say_ok(comm->rank(), message);
}

// Rank 1 lets go while the others wait for it.
void gone(std::unique_ptr<Communicator> comm) {
  const int rank = comm->rank();
  comm->barrier(soon());
  if (rank == 1) {
    comm.reset();
    say_ok(rank, "let go");
    return;
  }
  say_ok(rank, expect_error(ErrorCode::kPeerLost, {"rank 1 gone (communicator destroyed)"},
                            [&] { comm->barrier(soon()); }));
}

// Rank 1 comes too late.
void late(std::unique_ptr<Communicator> comm) {
  const int rank = comm->rank();
  comm->barrier(soon());
  Bf16 value;
  if (rank == 1) {
    std::this_thread::sleep_for(1s);
    say_ok(rank, expect_error(ErrorCode::kPeerLost, {"gone (failed and gave up)"},
                              [&] { comm->all_reduce(&value, 1, soon()); }));
    return;
  }
  // The first to give up says that its deadline passed, the other that the first is gone; both name
  // the cause, and stay failed.
  const auto failure = [&](Deadline deadline) {
    try {
      comm->all_reduce(&value, 1, deadline);
    } catch (const Error& error) {
      return error;
    }
    fail(ErrorCode::kCorrupted, "the sum went on without rank 1");
  };
  const Error first = failure(Deadline::after(300ms));
  const Error later = failure(soon());
  const std::string message = first.what();
  if (first.code() != ErrorCode::kDeadline && first.code() != ErrorCode::kPeerLost) throw first;
  if (message.find("rank 1 had not come") == std::string::npos) throw first;
  if (later.code() != first.code() || later.what() != message) throw later;
  say_ok(rank, message);
  std::this_thread::sleep_for(
      2s);  // the launcher ends all ranks when one ends without MPI_Finalize
}

// Rank 1 is killed while the others wait for it. Needs a launcher that lets the others live.
void killed(std::unique_ptr<Communicator> comm) {
  const int rank = comm->rank();
  comm->barrier(soon());
  if (rank == 1) raise(SIGKILL);
  const auto message =
      expect_error(ErrorCode::kPeerLost, {"rank 1 gone"}, [&] { comm->barrier(soon()); });
  if (!comm->peer_alive(1)) say_ok(rank, message);
  std::this_thread::sleep_for(2s);
}

// A job that only works, to run beside another.
void work(std::unique_ptr<Communicator> comm) {
  rowband::comm::conformance::check_interleaving(*comm, 1000);
  rowband::comm::conformance::check_symmetric_memory(*comm, 1 << 20);
  say_ok(comm->rank(), "1000 rounds");
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Scenario> scenarios = {{"hold", hold},     {"overfull", overfull},
                                                     {"gone", gone},     {"late", late},
                                                     {"killed", killed}, {"work", work}};
  const auto scenario = scenarios.find(argc == 2 ? argv[1] : "");
  if (scenario == scenarios.end()) {
    std::fprintf(stderr, "usage: mpi_scenario hold|overfull|gone|late|killed|work\n");
    return 2;
  }
  try {
    scenario->second(rowband::make_mpi_world_communicator());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "FAILED: %s\n", error.what());
    return 1;
  }
  return 0;
}
