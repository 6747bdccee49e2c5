#include "rowband/layer/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

#include "rowband/base/error.h"
#include "rowband/layer/row_parallel_linear.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

constexpr const char* kAll[] = {"ROWBAND_FUSE",         "ROWBAND_FP8_GATHER", "ROWBAND_TRANSPORT",
                                "ROWBAND_GATHER_SCALE", "ROWBAND_CHUNKS",     "ROWBAND_MAX_ROWS",
                                "ROWBAND_MIN_ROWS",     "ROWBAND_MIN_FILL",   "ROWBAND_DEADLINE",
                                "ROWBAND_DEBUG_CHECK",  "ROWBAND_SHAPE_LOG"};

// Every test starts and ends without any of the variables.
class Environment : public testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* name : kAll) unsetenv(name);
  }
  static void set(const char* name, const char* value) { setenv(name, value, 1); }

  static LayerOptions with(const char* name, const char* value) {
    clear();
    set(name, value);
    return LayerOptions::from_environment();
  }

  // from_environment() refuses the value, naming the variable, the value and `legal`.
  static void expect_refused(const char* name, const char* value, const char* legal) {
    try {
      with(name, value);
      ADD_FAILURE() << name << "='" << value << "' was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(name), HasSubstr(value), HasSubstr(legal)));
    }
  }
};

struct Flag {
  const char* name;
  std::function<bool(const LayerOptions&)> read;
};
const Flag kFlags[] = {
    {"ROWBAND_FUSE", [](const auto& o) { return o.policy.enabled; }},
    {"ROWBAND_FP8_GATHER", [](const auto& o) { return o.wire == Wire::kFp8; }},
    {"ROWBAND_DEBUG_CHECK", [](const auto& o) { return o.debug_check; }},
    {"ROWBAND_SHAPE_LOG", [](const auto& o) { return o.shape_log; }},
};

TEST_F(Environment, C07_FlagsMeanWhatTheySay) {
  for (const auto& [name, read] : kFlags) {
    for (const char* on : {"1", "true", "TRUE", "on", "On", "yes", " 1 ", "\ttrue\n"}) {
      EXPECT_TRUE(read(with(name, on))) << name << "='" << on << "'";
    }
    for (const char* off : {"0", "false", "False", "off", "OFF", "no", "", " ", " 0 "}) {
      EXPECT_FALSE(read(with(name, off))) << name << "='" << off << "'";
    }
    for (const char* other : {"2", "abc", "-1", "01", "1.0", "tru", "truee", "on off", "enable"}) {
      expect_refused(name, other, "1, true, on or yes, or 0, false, off or no");
    }
  }
}

TEST_F(Environment, C07_AnUnsetFlagIsToldFromOneThatIsOff) {
  EXPECT_EQ(environment_flag("ROWBAND_FUSE"), std::nullopt);
  set("ROWBAND_FUSE", "");
  EXPECT_EQ(environment_flag("ROWBAND_FUSE"), std::nullopt);
  set("ROWBAND_FUSE", "off");
  EXPECT_EQ(environment_flag("ROWBAND_FUSE"), false);
}

TEST_F(Environment, C07_IntegersKeepToTheirRange) {
  EXPECT_EQ(with("ROWBAND_CHUNKS", "1").chunks, 1);
  EXPECT_EQ(with("ROWBAND_CHUNKS", " 64 ").chunks, 64);
  EXPECT_EQ(with("ROWBAND_MAX_ROWS", "1").max_rows, 1);
  EXPECT_EQ(with("ROWBAND_MAX_ROWS", "9223372036854775807").max_rows, INT64_MAX);
  EXPECT_EQ(with("ROWBAND_MIN_ROWS", "0").policy.min_rows, 0);
  EXPECT_EQ(with("ROWBAND_MIN_ROWS", "300").policy.min_rows, 300);
  for (const char* bad : {"0", "65", "-1", "4.0", "4x", "0x4", "1e1", "four", "4 4",
                          "9223372036854775808", "99999999999999999999"}) {
    expect_refused("ROWBAND_CHUNKS", bad, "from 1 to 64");
  }
  expect_refused("ROWBAND_MAX_ROWS", "0", "from 1 to 9223372036854775807");
  expect_refused("ROWBAND_MAX_ROWS", "9223372036854775808", "from 1 to 9223372036854775807");
  expect_refused("ROWBAND_MIN_ROWS", "-1", "from 0 to 9223372036854775807");
}

TEST_F(Environment, C07_NumbersKeepToTheirRangeAndAreNumbers) {
  EXPECT_EQ(with("ROWBAND_MIN_FILL", "0").policy.min_fill, 0);
  EXPECT_EQ(with("ROWBAND_MIN_FILL", "1").policy.min_fill, 1);
  EXPECT_EQ(with("ROWBAND_MIN_FILL", " .25 ").policy.min_fill, 0.25);
  EXPECT_EQ(with("ROWBAND_DEADLINE", "0.001").deadline, 1ms);
  EXPECT_EQ(with("ROWBAND_DEADLINE", "2.5").deadline, 2500ms);
  EXPECT_EQ(with("ROWBAND_DEADLINE", "86400").deadline, 24h);
  for (const char* bad : {"nan", "NaN", "-nan", "inf", "-0.1", "1.0001", "50%", "0,5", "half"}) {
    expect_refused("ROWBAND_MIN_FILL", bad, "from 0 to 1");
  }
  for (const char* bad : {"nan", "inf", "0", "-1", "0.0009", "86401", "1e300", "5 min", "5s"}) {
    expect_refused("ROWBAND_DEADLINE", bad, "from 0.001 to 86400");
  }
}

TEST_F(Environment, C01_NamesAreTakenExactly) {
  EXPECT_EQ(with("ROWBAND_TRANSPORT", "copy_engine").transport, Transport::kCopyEngine);
  EXPECT_EQ(with("ROWBAND_TRANSPORT", " direct ").transport, Transport::kDirect);
  EXPECT_EQ(with("ROWBAND_GATHER_SCALE", "row").gather_scale, GatherScale::kPerRow);
  EXPECT_EQ(with("ROWBAND_GATHER_SCALE", "block").gather_scale, GatherScale::kPerRowBlock);
  for (const char* bad : {"sla", "Direct", "DIRECT", "copy-engine", "copyengine", "1"}) {
    expect_refused("ROWBAND_TRANSPORT", bad, "'copy_engine', 'direct'");
  }
  for (const char* bad : {"Row", "rows", "FP8", "0"}) {
    expect_refused("ROWBAND_GATHER_SCALE", bad, "'row', 'block'");
  }
}

TEST_F(Environment, UnsetOrEmptyVariablesLeaveTheDefaults) {
  const LayerOptions defaults;
  for (const bool empty : {false, true}) {
    for (const char* name : kAll) {
      if (empty) set(name, " ");
    }
    const LayerOptions o = LayerOptions::from_environment();
    EXPECT_FALSE(o.policy.enabled);  // opt-in
    EXPECT_EQ(o.wire, Wire::kBf16);
    EXPECT_FALSE(o.debug_check);
    EXPECT_FALSE(o.shape_log);
    EXPECT_EQ(o.max_rows, defaults.max_rows);
    EXPECT_EQ(o.transport, defaults.transport);
    EXPECT_EQ(o.gather_scale, defaults.gather_scale);
    EXPECT_EQ(o.chunks, defaults.chunks);
    EXPECT_EQ(o.policy.min_rows, defaults.policy.min_rows);
    EXPECT_EQ(o.policy.min_fill, defaults.policy.min_fill);
    EXPECT_EQ(o.deadline, kDefaultDeadline);
  }
}

TEST_F(Environment, AllVariablesAtOnceReachTheirOwnFields) {
  const std::map<const char*, const char*> values = {
      {"ROWBAND_FUSE", "yes"},        {"ROWBAND_FP8_GATHER", "1"},
      {"ROWBAND_CHUNKS", "7"},        {"ROWBAND_TRANSPORT", "copy_engine"},
      {"ROWBAND_MAX_ROWS", "4096"},   {"ROWBAND_GATHER_SCALE", "block"},
      {"ROWBAND_MIN_ROWS", "128"},    {"ROWBAND_MIN_FILL", "0.75"},
      {"ROWBAND_DEADLINE", "12"},     {"ROWBAND_DEBUG_CHECK", "true"},
      {"ROWBAND_SHAPE_LOG", "false"},
  };
  ASSERT_EQ(values.size(), std::size(kAll));
  for (const auto& [name, value] : values) set(name, value);
  const LayerOptions o = LayerOptions::from_environment();
  EXPECT_TRUE(o.policy.enabled);
  EXPECT_EQ(o.wire, Wire::kFp8);
  EXPECT_EQ(o.chunks, 7);
  EXPECT_EQ(o.transport, Transport::kCopyEngine);
  EXPECT_EQ(o.max_rows, 4096);
  EXPECT_EQ(o.gather_scale, GatherScale::kPerRowBlock);
  EXPECT_EQ(o.policy.min_rows, 128);
  EXPECT_EQ(o.policy.min_fill, 0.75);
  EXPECT_EQ(o.deadline, 12s);
  EXPECT_TRUE(o.debug_check);
  EXPECT_FALSE(o.shape_log);
}

}  // namespace
}  // namespace rowband
