#include "rowband/cli/ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "rowband/base/fail.h"
#include "rowband/cli/error_report.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/comm/threads.h"

namespace rowband::cli {
namespace {

using testing::HasSubstr;

Deadline soon() { return Deadline::after(std::chrono::seconds(60)); }

TEST(RunOnRanks, ReturnsTheLargestStatus) {
  EXPECT_EQ(run_on_ranks(4, [](Communicator& comm) { return comm.rank() == 2 ? 7 : 0; }), 7);
}

// The peers wait for rank 1 in a collective with a long deadline; its own error is what is seen.
TEST(RunOnRanks, D08_TheFirstErrorEndsAllRanksAndIsTheOneThrown) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_on_ranks(4, [](Communicator& comm) -> int {
      if (comm.rank() == 1) throw std::runtime_error("raised between two calls");
      comm.barrier(Deadline::after(std::chrono::seconds(300)));
      return 0;
    });
    FAIL() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "raised between two calls");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// What load_on_every_rank throws on each rank, when `failing` of `world` ranks fail.
std::vector<std::string> errors_when(int world, const std::function<std::string(int)>& why) {
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  run_ranks(world, [&](Communicator& comm) {
    try {
      load_on_every_rank(comm, "reading", soon(), [&] {
        if (const auto text = why(comm.rank()); !text.empty()) {
          fail(ErrorCode::kFormat, "{}", text);
        }
        return comm.rank();
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFormat);
      errors[static_cast<std::size_t>(comm.rank())] = error.what();
    }
  });
  return errors;
}

TEST(LoadOnEveryRank, AllGetTheReasonOfTheOneThatFailed) {
  const auto errors = errors_when(3, [](int rank) { return rank == 1 ? "a bad slice" : ""; });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 1"));
    EXPECT_THAT(error, HasSubstr("a bad slice"));
  }
}

TEST(LoadOnEveryRank, ACommonErrorIsSaidOnce) {
  const auto errors = errors_when(3, [](int) { return "no such file"; });
  EXPECT_THAT(errors, testing::Each("no such file"));
}

TEST(LoadOnEveryRank, ReturnsWhatEachRankLoaded) {
  EXPECT_THAT(errors_when(3, [](int) { return ""; }), testing::Each(""));
}

TEST(WorldSize, RefusesWhatNoGroupHas) {
  EXPECT_EQ(world_size(std::nullopt, 2), 2);
  EXPECT_EQ(world_size(64, 2), 64);
  EXPECT_THROW(world_size(0, 2), Error);
  EXPECT_THROW(world_size(65, 2), Error);
}

TEST(ErrorReport, SaysWhatAndHowToExit) {
  const auto report = [](ErrorCode code) {
    return report_of(std::make_exception_ptr(Error(code, "why")));
  };
  EXPECT_EQ(report(ErrorCode::kIo).exit_code, kBadInput);
  EXPECT_EQ(report(ErrorCode::kFormat).exit_code, kBadInput);
  EXPECT_EQ(report(ErrorCode::kInvalidArgument).exit_code, kBadInput);
  EXPECT_EQ(report(ErrorCode::kDeadline).exit_code, kFailed);
  EXPECT_EQ(report(ErrorCode::kFormat).text, "(bad format): why");
  EXPECT_EQ(report_of(std::make_exception_ptr(std::bad_alloc())).exit_code, kFailed);
}

}  // namespace
}  // namespace rowband::cli
