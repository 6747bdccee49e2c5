// The communicator over MPI; run by mpirun, every rank runs every test in the same order.
#include "rowband/comm/mpi.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>

#include "rowband/comm/conformance.h"

namespace rowband {
namespace {

namespace conformance = comm::conformance;
using conformance::expect_error;
using conformance::soon;

// One for all tests, as a program would have.
Communicator& world() {
  static const auto comm = make_mpi_world_communicator();
  return *comm;
}

TEST(Mpi, KnowsThatItWasStartedByMpi) {
  EXPECT_TRUE(started_by_mpi());
  EXPECT_EQ(world().kind(), "mpi");
}

TEST(Mpi, W01_Gathers) { conformance::check_all_gather(world(), 300001); }

TEST(Mpi, GathersLargerThanOnePiece) { conformance::check_all_gather(world(), (20 << 20) + 5); }

TEST(Mpi, W01_SumsExactly) { conformance::check_all_reduce_exact(world(), 100001); }

TEST(Mpi, SumsLargerThanOnePiece) { conformance::check_all_reduce_exact(world(), (9 << 20) + 3); }

TEST(Mpi, SumsHaveTheSameBitsOnEveryRank) {
  for (const std::int64_t count : {1, 77, 5000, 1 << 20}) {
    conformance::check_all_reduce_same_everywhere(world(), count);
  }
}

TEST(Mpi, TwoRanksRoundAsTheOpDoes) {
  if (world().size() != 2) GTEST_SKIP() << "MPI rounds between pairs";
  conformance::check_all_reduce_bits(world(), 100003);
}

TEST(Mpi, SharesMemory) {
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{4096}, std::size_t{1000003}}) {
    conformance::check_symmetric_memory(world(), bytes);
  }
}

TEST(Mpi, D01_AllocationFailsOnOneRankOnly) { conformance::check_allocation_failure(world(), 1); }

TEST(Mpi, L01_MoreThanDevShmHoldsIsAnErrorInWords) {
  expect_error(ErrorCode::kOutOfMemory,
               {"rank 0: window allocation failed", "/dev/shm", "free", "--shm-size"},
               [] { world().allocate_symmetric(std::size_t{1} << 45, soon()); });
  world().barrier(soon());
}

TEST(Mpi, D01_Agreement) { conformance::check_agreement(world()); }

TEST(Mpi, D03_DifferentCountsAreNamedAndTheGroupGoesOn) {
  conformance::check_count_disagreement(world());
  std::vector<char> buffer(16 * static_cast<std::size_t>(world().size()));
  const bool first = world().rank() == 0;
  expect_error(ErrorCode::kDisagreement, {"all_gather", "rank 0 has 16", "rank 1 has 8"},
               [&] { world().all_gather(buffer.data(), buffer.data(), first ? 16 : 8, soon()); });
}

TEST(Mpi, R12_InterleavedCollectivesStayApart) { conformance::check_interleaving(world(), 5000); }

TEST(Mpi, L05_TwoCommunicatorsInOneProcessStayApart) {
  const auto first = make_mpi_world_communicator();
  const auto second = make_mpi_world_communicator();
  for (int round = 0; round < 10; ++round) {
    conformance::check_interleaving(*first, 50);
    conformance::check_interleaving(*second, 50);
  }
  const auto window = first->allocate_symmetric(4096, soon());
  const auto other = second->allocate_symmetric(4096, soon());
  window->part(0)[world().rank()] = std::byte{1};
  other->part(0)[world().rank()] = std::byte{2};
  world().barrier(soon());
  for (int rank = 0; rank < world().size(); ++rank) {
    EXPECT_EQ(window->part(0)[rank], std::byte{1});
    EXPECT_EQ(other->part(0)[rank], std::byte{2});
  }
}

std::uintmax_t free_in_dev_shm() { return std::filesystem::space("/dev/shm").available; }

TEST(Mpi, L07_ReleasedWindowsAreFreed) {
  constexpr std::size_t kBytes = 4 << 20;
  world().barrier(soon());
  const auto before = free_in_dev_shm();
  for (int round = 0; round < 50; ++round) {
    const auto window = world().allocate_symmetric(kBytes, soon());
    window->part(world().rank())[0] = std::byte{1};
  }
  world().barrier(soon());
  // One window waits for the next allocation; other jobs may take some too.
  const auto allowed = 10 * kBytes * static_cast<std::size_t>(world().size());
  EXPECT_GT(free_in_dev_shm() + allowed, before);
}

TEST(Mpi, L09_CommunicatorsAreReleasedInAnyOrder) {
  for (int round = 0; round < 5; ++round) {
    auto first = make_mpi_world_communicator();
    auto second = make_mpi_world_communicator();
    auto window = first->allocate_symmetric(4096, soon());
    (world().rank() == 0 ? first : second).reset();
    world().barrier(soon());
    if (world().rank() == 0) window.reset();
    expect_error(ErrorCode::kInvalidArgument, {"peer_alive(-1)"}, [] { world().peer_alive(-1); });
    // What the others still hold works on: nothing was freed under them.
    if (window) window->part(world().rank())[0] = std::byte{1};
    world().barrier(soon());
  }
}

TEST(Mpi, PeersAreAlive) {
  for (int rank = 0; rank < world().size(); ++rank) EXPECT_TRUE(world().peer_alive(rank));
  world().barrier(soon());
}

}  // namespace
}  // namespace rowband
