#include "rowband/comm/callbacks.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <set>
#include <thread>

#include "rowband/base/fail.h"
#include "rowband/comm/conformance.h"
#include "rowband/comm/forked_ranks.h"
#include "rowband/comm/threads.h"

namespace rowband {
namespace {

using namespace std::chrono_literals;
namespace conformance = comm::conformance;
using comm::forbid_pidfd_getfd;
using comm::RankOutcomes;
using comm::run_forked;
using conformance::expect_error;
using conformance::soon;

using Body = std::function<void(Communicator&)>;

RankOutcomes run_processes(int size, const Body& body, int ranks_per_process = 1) {
  return run_forked(size, ranks_per_process, [&](const CommunicatorCallbacks& callbacks) {
    body(*make_callback_communicator(callbacks));
  });
}

void expect_all_fine(const RankOutcomes& outcomes) {
  for (std::size_t process = 0; process < outcomes.size(); ++process) {
    EXPECT_EQ(outcomes[process], "") << "process " << process;
  }
}

// Callbacks over the threads' own communicator.
CommunicatorCallbacks over(Communicator& comm) {
  CommunicatorCallbacks callbacks;
  callbacks.rank = comm.rank();
  callbacks.size = comm.size();
  callbacks.all_gather = [&comm](const void* send, void* recv, std::size_t bytes,
                                 Deadline deadline) {
    comm.all_gather(send, recv, bytes, deadline);
  };
  return callbacks;
}

void run_threads(int size, const Body& body) {
  run_ranks(size, [&](Communicator& comm) { body(*make_callback_communicator(over(comm))); });
}

void check_everything(Communicator& comm) {
  conformance::check_all_gather(comm, 1 << 18);
  conformance::check_all_reduce_exact(comm, 1 << 17);
  conformance::check_all_reduce_bits(comm, 50001);
  conformance::check_symmetric_memory(comm, 1 << 20);
  conformance::check_interleaving(comm, 100);
}

class CallbackSizes : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(W01, CallbackSizes, ::testing::Range(1, 9));

TEST_P(CallbackSizes, W01_Threads) { run_threads(GetParam(), check_everything); }

TEST_P(CallbackSizes, W01_Processes) {
  expect_all_fine(run_processes(GetParam(), check_everything));
}

TEST(Callbacks, ProcessesOfSeveralThreads) {
#ifdef __SANITIZE_THREAD__
  // The threads of a process without rank 0 meet through messages of another process, an order that
  // ThreadSanitizer cannot see.
  GTEST_SKIP() << "ThreadSanitizer does not see across processes";
#endif
  expect_all_fine(run_processes(4, check_everything, 2));
  expect_all_fine(run_processes(5, check_everything, 3));
}

TEST(Callbacks, SumsLargerThanTwoChunksOfTheSharedMemory) {
  expect_all_fine(run_processes(3, [](Communicator& comm) {
    conformance::check_all_reduce_bits(comm, (5 << 19) + 77);
    conformance::check_all_reduce_exact(comm, 1 << 21);
  }));
}

TEST(Callbacks, R12_InterleavedCollectivesStayApart) {
  expect_all_fine(
      run_processes(4, [](Communicator& comm) { conformance::check_interleaving(comm, 5000); }));
}

TEST(Callbacks, D01_AllocationFailsOnOneRankOnly) {
  const Body body = [](Communicator& comm) { conformance::check_allocation_failure(comm, 1); };
  expect_all_fine(run_processes(4, body));
  run_threads(4, body);
}

TEST(Callbacks, D01_MoreMemoryThanThereIsIsAnErrorInWords) {
  expect_all_fine(run_processes(2, [](Communicator& comm) {
    expect_error(ErrorCode::kOutOfMemory, {"rank 0: window allocation failed", "available"},
                 [&] { comm.allocate_symmetric(std::size_t{1} << 50, soon()); });
  }));
}

TEST(Callbacks, D03_DifferentCountsAreNamedAndTheGroupGoesOn) {
  const Body body = [](Communicator& comm) {
    conformance::check_count_disagreement(comm);
    conformance::check_agreement(comm);
  };
  expect_all_fine(run_processes(3, body));
  run_threads(2, body);
}

TEST(Callbacks, TheCallersAllReduceIsUsedOnceCountsAgree) {
  run_ranks(3, [](Communicator& inner) {
    int calls = 0;
    auto callbacks = over(inner);
    callbacks.all_reduce = [&](Bf16* data, std::int64_t count, Deadline deadline) {
      ++calls;
      inner.all_reduce(data, count, deadline);
    };
    const auto comm = make_callback_communicator(callbacks);
    conformance::check_count_disagreement(*comm);
    ASSERT_EQ(calls, 2);  // the two that agreed
    conformance::check_all_reduce_exact(*comm, 1000);
  });
}

TEST(Callbacks, CallbacksThatCannotWorkAreRefused) {
  expect_error(ErrorCode::kInvalidArgument, {"all_gather is empty"},
               [] { make_callback_communicator({}); });
  run_ranks(1, [](Communicator& comm) {
    auto callbacks = over(comm);
    callbacks.rank = 1;
    expect_error(ErrorCode::kInvalidArgument, {"rank 1 of 1"},
                 [&] { make_callback_communicator(callbacks); });
  });
}

TEST(Callbacks, AGatherInTheWrongOrderIsFoundAtConstruction) {
  run_ranks(2, [](Communicator& comm) {
    auto callbacks = over(comm);
    callbacks.all_gather = [&](const void* send, void* recv, std::size_t bytes, Deadline deadline) {
      std::vector<std::byte> all(2 * bytes);
      comm.all_gather(send, all.data(), bytes, deadline);
      std::rotate_copy(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(bytes), all.end(),
                       static_cast<std::byte*>(recv));
    };
    expect_error(ErrorCode::kDisagreement, {"slot 0 of 2 holds what rank 1", "r * bytes"},
                 [&] { make_callback_communicator(callbacks); });
  });
}

TEST(Callbacks, AnAllReduceOnSomeRanksOnlyIsRefused) {
  run_ranks(2, [](Communicator& comm) {
    auto callbacks = over(comm);
    if (comm.rank() == 1) callbacks.all_reduce = [](Bf16*, std::int64_t, Deadline) {};
    expect_error(ErrorCode::kDisagreement,
                 {"rank 1 has an all_reduce callback and rank 0 has none"},
                 [&] { make_callback_communicator(callbacks); });
  });
}

TEST(Callbacks, ACallbackThatThrewPoisonsTheCommunicator) {
  run_ranks(1, [](Communicator& inner) {
    bool broken = false;
    auto callbacks = over(inner);
    callbacks.all_gather = [&](const void* send, void* recv, std::size_t bytes, Deadline deadline) {
      if (broken) throw std::runtime_error("connection reset");
      inner.all_gather(send, recv, bytes, deadline);
    };
    const auto comm = make_callback_communicator(callbacks);
    broken = true;
    ASSERT_THROW(comm->barrier(soon()), std::runtime_error);
    broken = false;
    Bf16 value;
    expect_error(ErrorCode::kPoisoned, {"connection reset"}, [&] { comm->barrier(soon()); });
    expect_error(ErrorCode::kPoisoned, {"connection reset"},
                 [&] { comm->all_reduce(&value, 1, soon()); });
  });
}

TEST(Callbacks, DeadlineNamesTheRankThatHadNotCome) {
  expect_all_fine(run_processes(3, [](Communicator& comm) {
    Bf16 value = to_bf16(1.0f);
    comm.all_reduce(&value, 1, soon());
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(600ms);
      expect_error(ErrorCode::kPeerLost, {"ranks 0, 2 gone (failed and gave up)"},
                   [&] { comm.all_reduce(&value, 1, soon()); });
      return;
    }
    const auto first =
        expect_error(ErrorCode::kDeadline, {"all_reduce: 0.2 s passed and rank 1 had not come"},
                     [&] { comm.all_reduce(&value, 1, Deadline::after(200ms)); });
    // It stays failed, for every call.
    expect_error(ErrorCode::kDeadline, {first}, [&] { comm.all_reduce(&value, 1, soon()); });
    expect_error(ErrorCode::kDeadline, {first}, [&] { comm.barrier(soon()); });
  }));
}

TEST(Callbacks, D06_AKilledRankIsNamedAtOnce) {
  const auto start = std::chrono::steady_clock::now();
  const auto outcomes = run_processes(4, [](Communicator& comm) {
    std::vector<Bf16> data(1000, to_bf16(1.0f));
    comm.all_reduce(data.data(), 1000, soon());
    if (comm.rank() == 2) raise(SIGKILL);
    expect_error(ErrorCode::kPeerLost, {"rank 2 gone", "process or thread ended"},
                 [&] { comm.all_reduce(data.data(), 1000, soon()); });
    if (comm.peer_alive(2)) fail(ErrorCode::kCorrupted, "rank 2 counts as alive");
  });
  EXPECT_EQ(outcomes, (RankOutcomes{"", "", "signal 9", ""}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

TEST(Callbacks, ARankThatLetsGoIsSeenByThreads) {
  run_ranks(2, [](Communicator& inner) {
    auto comm = make_callback_communicator(over(inner));
    ASSERT_TRUE(comm->peer_alive(1 - inner.rank()));
    Bf16 value;
    comm->all_reduce(&value, 1, soon());
    if (inner.rank() == 1) comm.reset();
    inner.barrier(soon());
    if (inner.rank() == 1) return;
    ASSERT_FALSE(comm->peer_alive(1));
    expect_error(ErrorCode::kPeerLost, {"rank 1 gone"},
                 [&] { comm->all_reduce(&value, 1, soon()); });
  });
}

TEST(Callbacks, L05_TwoCommunicatorsInTheSameProcessesStayApart) {
  expect_all_fine(run_forked(2, 1, [](const CommunicatorCallbacks& callbacks) {
    const auto first = make_callback_communicator(callbacks);
    const auto second = make_callback_communicator(callbacks);
    const auto first_window = first->allocate_symmetric(4096, soon());
    const auto second_window = second->allocate_symmetric(4096, soon());
    first_window->part(1 - first->rank())[0] = std::byte{1};
    second_window->part(1 - first->rank())[0] = std::byte{2};
    first->barrier(soon());
    if (first_window->part(first->rank())[0] != std::byte{1} ||
        second_window->part(first->rank())[0] != std::byte{2}) {
      fail(ErrorCode::kCorrupted, "the windows of two communicators are mixed");
    }
    for (int round = 0; round < 10; ++round) {
      conformance::check_interleaving(*first, 100);
      conformance::check_interleaving(*second, 100);
    }
  }));
}

TEST(Callbacks, L07_WindowsGiveTheirMemoryAndDescriptorsBack) {
  expect_all_fine(run_processes(2, [](Communicator& comm) {
    const auto open_files = [] {
      return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    };
    comm.allocate_symmetric(1 << 20, soon());
    const auto before = open_files();
    for (int round = 0; round < 100; ++round) comm.allocate_symmetric(1 << 20, soon());
    if (open_files() != before) {
      fail(ErrorCode::kCorrupted, "{} descriptors are open, there were {}", open_files(), before);
    }
  }));
}

std::set<std::string> names_in_dev_shm() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const auto name = entry.path().filename().string();
    if (name.find("rowband") != std::string::npos) names.insert(name);
  }
  return names;
}

// With no names there are no stale ones (L03), none of other jobs to remove (L04), and none left.
TEST(Callbacks, L01_L03_L04_NothingIsNamedSoNothingStaysWhenAllRanksAreKilled) {
  const auto outcomes = run_processes(2, [](Communicator& comm) {
    const auto window = comm.allocate_symmetric(8 << 20, soon());
    if (!names_in_dev_shm().empty()) {
      _exit(3);  // the window has a name
    }
    comm.barrier(soon());
    raise(SIGKILL);
  });
  EXPECT_EQ(outcomes, (RankOutcomes{"signal 9", "signal 9"}));
  EXPECT_TRUE(names_in_dev_shm().empty());
}

TEST(Callbacks, P07_WithoutPidfdGetfdTheProcFileSystemServes) {
  expect_all_fine(run_processes(2, [](Communicator& comm) {
    forbid_pidfd_getfd(/*also_open=*/false);
    conformance::check_symmetric_memory(comm, 1 << 20);
  }));
}

TEST(Callbacks, P07_WithNeitherTheErrorNamesTheCallAndTheRemedyOnEveryRank) {
  expect_all_fine(run_processes(3, [](Communicator& comm) {
    if (comm.rank() == 1) forbid_pidfd_getfd(/*also_open=*/true);
    expect_error(ErrorCode::kUnavailable,
                 {"rank 1: window allocation failed", "pidfd_getfd(pid", "Operation not permitted",
                  "open(/proc/", "--cap-add=SYS_PTRACE"},
                 [&] { comm.allocate_symmetric(4096, soon()); });
    comm.barrier(soon());  // the group goes on
  }));
}

}  // namespace
}  // namespace rowband
