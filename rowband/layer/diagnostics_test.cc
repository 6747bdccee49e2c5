// The layer's own instruments: the debug check and the shape log.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "rowband/layer/test_support.h"

namespace rowband {
namespace {

using testing::HasSubstr;

// The two numbers of a line of the debug check.
std::pair<double, double> numbers_of(const std::string& line) {
  std::smatch found;
  const std::regex pattern("fused against base ([^,]+), of fused against itself (.+)$");
  if (!std::regex_search(line, found, pattern)) {
    ADD_FAILURE() << "no two numbers in: " << line;
    return {-1, -1};
  }
  return {std::stod(found[1]), std::stod(found[2])};
}

TEST(DebugCheck, LogsBothNumbersOnEveryRankAndGivesTheFusedResult) {
  for (Wire wire : {Wire::kBf16, Wire::kFp8}) {
    const LogCapture log;
    std::vector<std::vector<Bf16>> checked(2), plain(2);
    for (const bool check : {false, true}) {
      LayerOptions options = layer_options(256);
      options.wire = wire;
      options.debug_check = check;
      run_ranks(2, [&](Communicator& comm) {
        const int rank = comm.rank();
        const auto layer = RowParallelLinear::create(comm, test_engine(rank),
                                                     to_slice(RandomWeight(72, 256, 5 + rank)),
                                                     random_bf16(72, 3), options);
        const auto x = random_bf16(200 * 256, 50 + rank);
        const Output y = layer->forward(x.data(), 200, 256);
        (check ? checked : plain)[rank].assign(y.data, y.data + y.rows * y.cols);
        EXPECT_EQ(layer->counters().of(Decision::kFuse), 1);
      });
    }
    EXPECT_EQ(checked, plain);
    for (int rank : {0, 1}) {
      const auto lines = log.lines_with("debug check, rank " + std::to_string(rank) + ", M=200");
      ASSERT_EQ(lines.size(), 1u);
      const auto [against_base, against_itself] = numbers_of(lines[0]);
      EXPECT_GT(against_base, 0);
      EXPECT_LT(against_base, wire == Wire::kFp8 ? 3e-2 : 3e-3);
      EXPECT_EQ(against_itself, 0);
    }
  }
}

TEST(DebugCheck, ShowsATransportThatStopsMovingBytes) {
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    auto faults = std::make_shared<FaultHooks>();
    faults->skip_transfers_from = 4;  // the self-test passes
    LayerOptions options = layer_options(256);
    options.debug_check = true;
    options.faults = faults;
    const auto layer = make_exact_layer(comm, 64, 128, options);
    ASSERT_NE(layer->fused(), nullptr);
    const auto x = exact_bf16(256, 128, comm.rank(), 1);
    layer->forward(x.data(), 256, 128);
  });
  const auto lines = log.lines_with("debug check");
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& line : lines) EXPECT_GT(numbers_of(line).first, 0.1) << line;
}

TEST(DebugCheck, WritesToOutAndLeavesDeclinedCallsAlone) {
  LayerOptions options = layer_options(256);
  options.debug_check = true;
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 64, 128, options);
    std::vector<Bf16> out(256 * 64 + 8, Bf16{0x5A5A});
    EXPECT_EQ(forward_exact(comm, *layer, 256, 1, out.data()).data, out.data());
    for (int i = 0; i < 8; ++i) EXPECT_EQ(out[256 * 64 + i].bits, 0x5A5A);
    forward_exact(comm, *layer, 10, 2);
    forward_exact(comm, *layer, 0, 3);
  });
  EXPECT_EQ(log.lines_with("debug check").size(), 2u);  // of the first call, one per rank
}

TEST(ShapeLog, CountsShapesByPathAndIsLoggedOnceAtClose) {
  LayerOptions options = layer_options(256);
  options.shape_log = true;
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 72, 128, options);
    for (std::int64_t rows : {100, 7, 100, 300, 7, 7, 0, 100, 100}) {
      forward_exact(comm, *layer, rows, rows);
    }
    const auto& shapes = layer->counters().shapes;
    ASSERT_EQ(shapes.size(), 4u);
    EXPECT_EQ(shapes.at(100).fused, 4);
    EXPECT_EQ(shapes.at(100).declined, 0);
    EXPECT_EQ(shapes.at(7).fused, 0);
    EXPECT_EQ(shapes.at(7).declined, 3);
    EXPECT_EQ(shapes.at(0).declined, 1);
    EXPECT_EQ(shapes.at(300).declined, 1);
    layer->close();
    layer->close();
  });
  const auto lines = log.lines_with("shape log");
  ASSERT_EQ(lines.size(), 4u);  // in order of M, by one rank
  EXPECT_THAT(lines[0], HasSubstr("N=72 K=128: M=0 fused 0 declined 1"));
  EXPECT_THAT(lines[1], HasSubstr("M=7 fused 0 declined 3"));
  EXPECT_THAT(lines[2], HasSubstr("M=100 fused 4 declined 0"));
  EXPECT_THAT(lines[3], HasSubstr("M=300 fused 0 declined 1"));
}

TEST(ShapeLog, IsSilentUnlessAskedFor) {
  const LogCapture log;
  run_ranks(2, [&](Communicator& comm) {
    const auto layer = make_exact_layer(comm, 64, 128, layer_options(256));
    forward_exact(comm, *layer, 100, 1);
    EXPECT_TRUE(layer->counters().shapes.empty());
  });
  EXPECT_TRUE(log.lines_with("").empty());
}

}  // namespace
}  // namespace rowband
