#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "rowband/base/error.h"
#include "rowband/trace/sample_timeline.h"
#include "rowband/trace/timeline.h"

namespace rowband {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class PerfettoTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove(path_); }

  json write(std::vector<TimelineEvent> events) const {
    Timeline timeline;
    timeline.add(std::move(events));
    write_timeline_perfetto(timeline, path_);
    return json::parse(std::ifstream(path_)).at("traceEvents");
  }

  const fs::path path_ = testing::TempDir() + "rowband_" +
                         testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

std::vector<json> of_phase(const json& events, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

// "rank 0/worker 1" for each (process, thread).
std::map<std::pair<int, int>, std::string> thread_names(const json& events) {
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  for (const json& event : of_phase(events, "M")) {
    if (event.at("name") == "process_name")
      processes[event.at("pid")] = event.at("args").at("name");
    if (event.at("name") == "thread_name") {
      threads[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    }
  }
  for (auto& [id, name] : threads) name = processes.at(id.first) + "/" + name;
  return threads;
}

TEST_F(PerfettoTest, TimesAreMicrosecondsFromTheEarliestEvent) {
  const json events =
      write({{0, "worker 0", Activity::kGemm, "band 1", 5'000'001'500, 5'000'003'750},
             {1, "copy thread", Activity::kScatter, "chunk 2", 5'000'000'000, 5'000'000'001}});
  const std::vector<json> slices = of_phase(events, "X");
  ASSERT_EQ(slices.size(), 2U);
  EXPECT_EQ(slices[0].at("name"), "gemm");
  EXPECT_EQ(slices[0].at("args").at("label"), "band 1");
  EXPECT_EQ(slices[0].at("ts"), 1.5);
  EXPECT_EQ(slices[0].at("dur"), 2.25);
  EXPECT_EQ(slices[1].at("name"), "scatter");
  EXPECT_EQ(slices[1].at("ts"), 0.0);
  EXPECT_EQ(slices[1].at("dur"), 0.001);
}

TEST_F(PerfettoTest, RanksAreProcessesAndLanesAreThreadsInPictureOrder) {
  const json events = write({{0, "copy thread", Activity::kGather, "", 0, 1},
                             {0, "worker 0", Activity::kGemm, "", 0, 1},
                             {3, "worker 0", Activity::kGemm, "", 0, 1}});
  std::vector<std::string> names;
  for (const json& slice : of_phase(events, "X")) {
    names.push_back(thread_names(events).at({slice.at("pid"), slice.at("tid")}));
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"rank 0/worker 0", "rank 0/copy thread", "rank 3/worker 0"}));
  std::map<std::string, std::vector<int>> order;
  for (const json& event : of_phase(events, "M")) {
    if (event.at("args").contains("sort_index")) {
      order[event.at("name")].push_back(event.at("args").at("sort_index"));
    }
  }
  EXPECT_EQ(order.at("process_sort_index"), (std::vector<int>{0, 3}));
  const std::vector<int>& threads = order.at("thread_sort_index");
  ASSERT_EQ(threads.size(), 3U);
  EXPECT_LT(threads[0], threads[1]);
}

TEST_F(PerfettoTest, IdsSuitTheViewer) {
  const json events = write(sample_timeline({.ranks = 4}));
  std::set<int> processes;
  std::map<int, int> process_of_thread;
  for (const json& event : events) {
    const int process = event.at("pid");
    const int thread = event.at("tid");
    processes.insert(process);
    const auto [known, added] = process_of_thread.emplace(thread, process);
    EXPECT_EQ(known->second, process) << "thread " << thread << " is in two processes";
  }
  EXPECT_EQ(processes.size(), 4U);
  EXPECT_FALSE(processes.contains(0));
  for (const auto& [thread, process] : process_of_thread) {
    EXPECT_FALSE(processes.contains(thread)) << "thread " << thread << " has a process's number";
  }
}

TEST_F(PerfettoTest, EveryEventIsThereAndNoThreadDoesTwoThingsAtOnce) {
  std::vector<TimelineEvent> recorded = sample_timeline({.ranks = 3});
  const std::int64_t start = recorded.front().begin_ns;
  recorded.push_back({0, "copy thread", Activity::kGather, "long", start, start + 3'000'000});
  const json events = write(recorded);
  const std::vector<json> slices = of_phase(events, "X");
  EXPECT_EQ(slices.size(), recorded.size());
  const auto names = thread_names(events);
  std::map<std::pair<int, int>, std::int64_t> free_at;  // ns
  std::set<std::string> gathers_of_rank_0;
  for (const json& slice : slices) {
    const std::pair<int, int> thread{slice.at("pid"), slice.at("tid")};
    const std::int64_t begin = std::llround(slice.at("ts").get<double>() * 1e3);
    EXPECT_GE(begin, free_at[thread]) << slice;
    free_at[thread] = begin + std::llround(slice.at("dur").get<double>() * 1e3);
    if (slice.at("pid") == 1 && slice.at("name") == "gather") {
      gathers_of_rank_0.insert(names.at(thread));
    }
  }
  EXPECT_EQ(gathers_of_rank_0,
            (std::set<std::string>{"rank 0/copy thread", "rank 0/copy thread (overlap 1)"}));
}

TEST_F(PerfettoTest, AnyTextIsWritten) {
  const json events =
      write({{0, "lane \"\\\n\x01", Activity::kWait, "\xFF</script>\xC3\xA9", 0, 1}});
  EXPECT_EQ(thread_names(events).begin()->second, "rank 0/lane \"\\\n\x01");
  EXPECT_EQ(of_phase(events, "X")[0].at("args").at("label"), "\xEF\xBF\xBD</script>\xC3\xA9");
}

TEST_F(PerfettoTest, EmptyTimelineIsRefused) {
  try {
    write({});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("no events"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(PerfettoTest, UnwritablePathIsNamed) {
  Timeline timeline;
  timeline.add(sample_timeline({}));
  try {
    write_timeline_perfetto(timeline, "/nonexistent folder/trace.json");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("/nonexistent folder/trace.json"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace rowband
