// `rowband self-test`: does this machine move bytes, by every transport and wire?
#include <fmt/format.h>

#include <memory>

#include "rowband/cli/commands.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/ranks.h"

namespace rowband::cli {
namespace {

struct SelfTestFlags {
  std::optional<int> ranks;
  std::int64_t rows = 1000;
  std::int64_t cols = 1024;
  LayerFlags layer;
  EngineFlags engine;
};

constexpr int kDefaultRanks = 2;

// Returns why it failed, "" when the bytes moved; the same on every rank.
std::string try_transport(Communicator& comm, const std::shared_ptr<Engine>& engine,
                          const GemmAllReduceOptions& options, std::int64_t& calls) {
  try {
    const auto op = GemmAllReduce::create(comm, engine, options);  // which runs the self-test
    op->self_test();  // once more, on an op that has been used
    calls = op->calls();
    return "";
  } catch (const Error& error) {
    // After these the ranks still stand at the same place, and the next one can be tried.
    if (error.code() != ErrorCode::kCorrupted && error.code() != ErrorCode::kOutOfMemory) throw;
    return error.what();
  }
}

struct Outcome {
  const char* word;
  std::string text;
};

Outcome outcome_of(Communicator& comm, const std::shared_ptr<Engine>& engine,
                   const GemmAllReduceOptions& options) {
  const PlanSpec spec = GemmAllReduce::plan_spec(*engine, options, comm.size());
  if (why_not_expressible(spec).empty()) {
    if (auto why = engine->why_not_served(spec); !why.empty()) return {"none", std::move(why)};
  }
  std::int64_t calls = 0;
  if (auto why = try_transport(comm, engine, options, calls); !why.empty()) {
    return {"FAIL", std::move(why)};
  }
  return {"ok", fmt::format("{} calls, every element as expected on {} rank{}", calls, comm.size(),
                            comm.size() == 1 ? "" : "s")};
}

int test_on_rank(Communicator& comm, const SelfTestFlags& flags) {
  LayerOptions layer = flags.layer.resolve(flags.rows);
  const auto engine = make_rank_engine(comm, flags.engine, Deadline::after(layer.deadline));
  int failures = 0, tried = 0;
  for (const Transport transport : {Transport::kDirect, Transport::kCopyEngine}) {
    for (const Wire wire : {Wire::kBf16, Wire::kFp8}) {
      layer.transport = transport;
      layer.wire = wire;
      const Outcome outcome = outcome_of(comm, engine, op_options(layer, flags.cols, kScaleBlock));
      const std::string_view word = outcome.word;
      tried += word == "none" ? 0 : 1;
      failures += word == "FAIL" ? 1 : 0;
      if (comm.rank() != 0) continue;
      fmt::print("{:<4}  transport {:<11}  wire {:<4}  {}\n", word, transport_name(transport),
                 wire_name(wire), outcome.text);
    }
  }
  if (comm.rank() == 0 && failures > 0) {
    fmt::print("{} of {} failed; `rowband doctor` prints what a report needs\n", failures, tried);
  }
  return failures == 0 ? kOk : kFailed;
}

}  // namespace

void add_self_test_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<SelfTestFlags>();
  CLI::App& command = *program.add_subcommand(
      "self-test", "Prove that every transport and wire moves bytes on this machine");
  add_ranks_option(command, flags->ranks, kDefaultRanks);
  command.add_option("--rows", flags->rows, "Capacity of the ops under test")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description(""))
      ->capture_default_str()
      ->type_name("M");
  command.add_option("--cols", flags->cols, "Their output columns")
      ->capture_default_str()
      ->type_name("N");
  command.add_option("--deadline", flags->layer.deadline_seconds, "Of every wait")
      ->type_name("SECONDS");
  flags->engine.add_to(command);
  command.callback([flags, &chosen] {
    chosen = [flags] {
      const int world = world_size(flags->ranks, kDefaultRanks);
      if (const auto status = run_in_own_processes(world, flags->engine)) return *status;
      return run_on_ranks(world, [&](Communicator& comm) { return test_on_rank(comm, *flags); });
    };
  });
}

}  // namespace rowband::cli
