// Agreement, on top of any communicator: here threads.
#include "rowband/comm/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>

#include "rowband/comm/conformance.h"
#include "rowband/comm/threads.h"

namespace rowband {
namespace {

using comm::conformance::expect_error;
using comm::conformance::soon;

// The one message that all ranks of `size` got from `call`.
std::string one_message(int size, ErrorCode code, const std::function<void(Communicator&)>& call) {
  std::mutex mutex;
  std::multiset<std::string> messages;
  run_ranks(size, [&](Communicator& comm) {
    const auto message = expect_error(code, {}, [&] { call(comm); });
    const std::lock_guard lock(mutex);
    messages.insert(message);
  });
  EXPECT_EQ(messages.size(), static_cast<std::size_t>(size));
  EXPECT_EQ(messages.count(*messages.begin()), messages.size()) << "messages differ by rank";
  return *messages.begin();
}

TEST(Agreement, SuccessIsSilent) {
  run_ranks(
      4, [](Communicator& comm) { agree_on_success(comm, "start", "", ErrorCode::kIo, soon()); });
}

TEST(Agreement, D01_OneRankFailsAndEveryRankKnowsWhy) {
  const auto message = one_message(4, ErrorCode::kIo, [](Communicator& comm) {
    agree_on_success(comm, "start", comm.rank() == 1 ? "no disk" : "", ErrorCode::kIo, soon());
  });
  EXPECT_EQ(message, "rank 1: start failed: no disk");
}

TEST(Agreement, D01_EveryFailingRankIsNamedAndTheFirstOnesCodeCounts) {
  const auto message = one_message(4, ErrorCode::kOutOfMemory, [](Communicator& comm) {
    const bool fails = comm.rank() % 2 == 1;
    const auto code = comm.rank() == 1 ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable;
    agree_on_success(comm, "start", fails ? std::string(comm.rank(), 'x') : "", code, soon());
  });
  EXPECT_EQ(message, "rank 1: start failed: x; rank 3: start failed: xxx");
}

TEST(Agreement, LongReasonsAreCutBetweenCharacters) {
  const auto message = one_message(2, ErrorCode::kIo, [](Communicator& comm) {
    std::string reason = "x";
    for (int i = 0; i < 5000; ++i) reason += "\u00e9";
    agree_on_success(comm, "start", comm.rank() == 0 ? reason : "", ErrorCode::kIo, soon());
  });
  EXPECT_LT(message.size(), 4400u);
  EXPECT_NE(message.find("\u00e9... (10001 bytes in all)"), std::string::npos) << message;
}

TEST(Agreement, SameValuesAgree) {
  run_ranks(3, [](Communicator& comm) {
    agree_on_values(comm, "shape", {{"M", "256"}, {"N", ""}, {"", "x"}}, soon());
    agree_on_values(comm, "nothing", {}, soon());
  });
}

TEST(Agreement, D03_DifferentValuesNameBoth) {
  const auto message = one_message(2, ErrorCode::kDisagreement, [](Communicator& comm) {
    agree_on_values(comm, "shape", {{"K", "128"}, {"M", comm.rank() == 0 ? "256" : "384"}}, soon());
  });
  EXPECT_EQ(message, "shape: the ranks disagree: M: rank 0 has 256, rank 1 has 384");
}

TEST(Agreement, D03_TheFirstDifferingNameIsToldWhicheverRankHasIt) {
  const auto message = one_message(3, ErrorCode::kDisagreement, [](Communicator& comm) {
    agree_on_values(comm, "shape",
                    {{"M", comm.rank() == 2 ? "2" : "1"}, {"N", comm.rank() == 1 ? "8" : "7"}},
                    soon());
  });
  EXPECT_EQ(message, "shape: the ranks disagree: M: rank 0 has 1, rank 2 has 2");
}

TEST(Agreement, ValuesThatOnlyDifferFarInAreStillDifferent) {
  const auto message = one_message(2, ErrorCode::kDisagreement, [](Communicator& comm) {
    std::string value(100000, 'a');
    if (comm.rank() == 1) value.back() = 'b';
    agree_on_values(comm, "plan", {{"table", value}}, soon());
  });
  EXPECT_NE(message.find("(100000 bytes in all)"), std::string::npos);
  EXPECT_LT(message.size(), 1000u);
}

TEST(Agreement, DifferentNamesAndMissingValuesAreNamed) {
  EXPECT_EQ(one_message(2, ErrorCode::kDisagreement,
                        [](Communicator& comm) {
                          agree_on_values(comm, "x", {{comm.rank() == 0 ? "M" : "N", "1"}}, soon());
                        }),
            "x: the ranks disagree: rank 0 passed 'M' where rank 1 passed 'N'");
  EXPECT_EQ(one_message(2, ErrorCode::kDisagreement,
                        [](Communicator& comm) {
                          std::vector<NamedValue> values;
                          if (comm.rank() == 1) values.push_back({"bias", "yes"});
                          agree_on_values(comm, "x", values, soon());
                        }),
            "x: the ranks disagree: rank 1 passed 'bias', which rank 0 did not");
}

TEST(Agreement, BarrierWaitsForEveryone) {
  std::atomic<int> arrived{0};
  run_ranks(5, [&](Communicator& comm) {
    for (int round = 1; round <= 200; ++round) {
      ++arrived;
      comm.barrier(soon());
      ASSERT_GE(arrived.load(), round * comm.size());
      comm.barrier(soon());
    }
  });
}

}  // namespace
}  // namespace rowband
