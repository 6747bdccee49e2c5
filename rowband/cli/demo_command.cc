// `rowband demo`: the base path beside the fused one, in one table and one picture.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "rowband/base/fail.h"
#include "rowband/cli/commands.h"
#include "rowband/cli/compare.h"
#include "rowband/cli/exit_codes.h"
#include "rowband/cli/layer_input.h"
#include "rowband/cli/leg_times.h"
#include "rowband/cli/ranks.h"
#include "rowband/cli/table.h"
#include "rowband/cli/trace_files.h"
#include "rowband/engines/host/machine.h"
#include "rowband/io/make_checkpoint.h"

namespace rowband::cli {
namespace {

namespace fs = std::filesystem;

constexpr int kDefaultRanks = 2;
constexpr std::int64_t kDemoRows = 2048, kDemoCols = 7168, kDemoDepth = 512;

struct DemoFlags {
  InputFlags input;
  std::optional<int> ranks;
  int repeats = 7;
  EngineFlags engine;
  std::string output_dir = ".";
};

// What one path showed.
struct DemoRow {
  ArmResult result;
  LegTimes legs;  // of one more call, which was traced; unused for the base path
};

std::string label_of(const ArmSpec& arm) {
  return arm.fused ? fmt::format("fused, {} wire", wire_name(arm.wire)) : "base";
}

std::string file_name(const ArmSpec& arm) {
  return arm.fused ? fmt::format("fused-{}.svg", wire_name(arm.wire)) : "base.svg";
}

std::string ms_text(double ms) { return ms > 0 ? fmt::format("{:.2f}", ms) : "-"; }

std::string table_text(const std::vector<DemoRow>& rows) {
  Table table({{"path", Table::Align::kLeft},
               {"GEMM"},
               {"scatter"},
               {"reduce"},
               {"gather"},
               {"all-reduce"},
               {"total ms"},
               {"of base"},
               {"rel. L2"},
               {"same bits"}});
  const double base = median(rows.front().result.ms);
  for (const auto& [result, legs] : rows) {
    const bool right = result.wrong.empty();
    const bool fused = result.spec.fused;
    const auto leg = [&](double ms) { return right ? ms_text(ms) : ""; };
    table.add({label_of(result.spec), leg(fused ? legs.gemm_ms : median(result.gemm_ms)),
               leg(legs.scatter_ms), leg(legs.reduce_ms), leg(legs.gather_ms),
               leg(fused ? 0 : median(result.all_reduce_ms)),
               right ? ms_text(median(result.ms)) : "wrong",
               right && base > 0 ? fmt::format("{:.3f}", median(result.ms) / base) : "",
               fmt::format("{:.1e}", result.relative_l2), result.same_bits ? "yes" : "no"});
  }
  return table.text();
}

void make_output_dir(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    fail(ErrorCode::kIo, "--output-dir {}: cannot be made: {}", folder, error.message());
  }
}

// Without --checkpoint: one like any other, which is written here and from then on only read.
InputFlags with_checkpoint(const DemoFlags& flags, const Communicator& comm) {
  InputFlags input = flags.input;
  if (!input.rows) input.rows = kDemoRows;
  if (comm.rank() == 0) make_output_dir(flags.output_dir);
  if (!input.checkpoint.empty()) return input;
  input.checkpoint = (fs::path(flags.output_dir) / "demo.safetensors").string();
  if (comm.rank() == 0) {
    make_checkpoint(input.checkpoint, {.name = "model.layers.0.self_attn.o_proj",
                                       .cols = input.cols.value_or(kDemoCols),
                                       .depth = input.depth.value_or(kDemoDepth) * comm.size(),
                                       .seed = input.seed});
  }
  input.cols.reset();
  input.depth.reset();
  return input;
}

class DemoOnRank {
 public:
  DemoOnRank(Communicator& comm, const DemoFlags& flags, const LayerInput& input,
             const LayerOptions& options)
      : comm_(comm), flags_(flags), input_(input), options_(options) {}

  int run() {
    engine_ = make_rank_engine(comm_, flags_.engine, deadline());
    const Fp8Weight weight = load_on_every_rank(comm_, "reading the weight", deadline(),
                                                [&] { return input_.weight(comm_.rank()); });
    const auto bias =
        load_on_every_rank(comm_, "reading the bias", deadline(), [&] { return input_.bias(); });
    const ActivationSlice x = input_.activations(comm_.rank());
    std::vector<QuantizedActivations> sets;
    sets.emplace_back(*engine_, x.data, input_.rows(), input_.depth(), x.row_stride);
    std::vector<std::unique_ptr<Arm>> arms;
    for (const char* name : {"base", "bf16-copy_engine", "fp8-copy_engine"}) {
      arms.push_back(make_arm(comm_, engine_, parse_arm(name), weight, bias, options_));
    }
    const auto results = compare_arms(comm_, *engine_, weight, bias, sets, arms,
                                      {.repeats = flags_.repeats,
                                       .threads = std::max(1, host::allowed_cores() / comm_.size()),
                                       .deadline = options_.deadline});
    std::vector<DemoRow> rows;
    for (std::size_t i = 0; i < arms.size(); ++i) {
      rows.push_back({results[i], arms[i]->spec().fused ? trace(*arms[i], sets[0]) : LegTimes()});
    }
    if (comm_.rank() == 0) print(rows);
    const bool right =
        std::ranges::all_of(rows, [](const DemoRow& row) { return row.result.wrong.empty(); });
    return right ? kOk : kFailed;
  }

 private:
  Deadline deadline() const { return Deadline::after(options_.deadline); }

  fs::path picture_of(const ArmSpec& arm) const {
    return fs::path(flags_.output_dir) / file_name(arm);
  }

  LegTimes trace(Arm& arm, const QuantizedActivations& x) {
    comm_.barrier(deadline());
    Timeline own;
    arm.run(x.view(), &own);
    const auto all = gather_timeline(comm_, own, deadline());
    if (comm_.rank() == 0) {
      write_trace_files(
          *all,
          fmt::format("Rowband, {}: M={} N={} K={} on each of {} ranks", label_of(arm.spec()),
                      input_.rows(), input_.cols(), input_.depth(), comm_.size()),
          picture_of(arm.spec()));
    }
    return leg_times(all->events());
  }

  void print(const std::vector<DemoRow>& rows) const {
    fmt::print(
        "A row-parallel linear layer, M={} N={} K={} on each of {} ranks ({}).\n"
        "{}\n{}\n\n{}\n"
        "Times in ms, medians of {} calls of each path in turn, maximum over ranks. The fused legs "
        "run at the same\ntime, so they do not add up to the total; they are from one traced call: "
        "how long anything of that leg ran.\nTransfers go by the copy_engine transport, which has "
        "threads of its own, so that they are seen under the GEMM.\nrel. L2 is against a float64 "
        "reference on the dequantised operands; same bits: on all ranks, in every checked "
        "call.\n\n",
        input_.rows(), input_.cols(), input_.depth(), comm_.size(), ranks_text(comm_),
        input_.weight_source(), engine_->description(), table_text(rows), flags_.repeats);
    for (const auto& [result, legs] : rows) {
      if (!result.wrong.empty()) fmt::print("{}: {}\n", label_of(result.spec), result.wrong);
      if (!result.spec.fused) continue;
      const fs::path picture = picture_of(result.spec);
      fmt::print("timeline, {}: {}\n", label_of(result.spec), picture.string());
      fmt::print("  for https://ui.perfetto.dev: {}\n", perfetto_path(picture).string());
    }
  }

  Communicator& comm_;
  const DemoFlags& flags_;
  const LayerInput& input_;
  const LayerOptions& options_;
  std::shared_ptr<Engine> engine_;
};

int demo_on_rank(Communicator& comm, const DemoFlags& flags) {
  LayerOptions options = LayerOptions::from_environment();
  const auto deadline = [&] { return Deadline::after(options.deadline); };
  const InputFlags input_flags = load_on_every_rank(comm, "the checkpoint", deadline(),
                                                    [&] { return with_checkpoint(flags, comm); });
  const LayerInput input = load_on_every_rank(comm, "the input", deadline(), [&] {
    LayerInput opened(input_flags, comm.size());
    options.max_rows = std::max<std::int64_t>(opened.rows(), 1);
    require_expressible(options, flags.engine, opened.cols(), opened.depth(), comm.size());
    return opened;
  });
  return DemoOnRank(comm, flags, input, options).run();
}

}  // namespace

void add_demo_command(CLI::App& program, Command& chosen) {
  auto flags = std::make_shared<DemoFlags>();
  InputFlags& input = flags->input;
  CLI::App& command = *program.add_subcommand(
      "demo", "Show the base path beside the fused one: a table, and a picture of the call");
  command
      .add_option(
          "--checkpoint", input.checkpoint,
          "Weight from a .safetensors file, an index.json or a directory; one is made without")
      ->type_name("PATH");
  command
      .add_option("--tensor", input.tensor, "The weight's name; not needed when there is only one")
      ->type_name("NAME");
  command.add_option("--rows", input.rows, fmt::format("M ({})", kDemoRows))->type_name("M");
  command.add_option("--cols", input.cols, fmt::format("N of the checkpoint made ({})", kDemoCols))
      ->type_name("N");
  command
      .add_option("--depth", input.depth,
                  fmt::format("K per rank of the checkpoint made ({})", kDemoDepth))
      ->type_name("K");
  command.add_option("--seed", input.seed, "Of random operands")
      ->capture_default_str()
      ->type_name("NUMBER");
  add_ranks_option(command, flags->ranks, kDefaultRanks);
  command.add_option("--repeats", flags->repeats, "Timed calls of each path")
      ->check(CLI::Range(1, 10000).description(""))
      ->capture_default_str()
      ->type_name("COUNT");
  flags->engine.add_to(command);
  command.add_option("--output-dir", flags->output_dir, "Where checkpoint, pictures and traces go")
      ->capture_default_str()
      ->type_name("FOLDER");
  command.callback([flags, &chosen] {
    chosen = [flags] {
      flags->engine.take_host("rowband demo");
      const int world = world_size(flags->ranks, kDefaultRanks);
      if (const auto status = run_in_own_processes(world, flags->engine)) return *status;
      return run_on_ranks(world, [&](Communicator& comm) { return demo_on_rank(comm, *flags); });
    };
  });
}

}  // namespace rowband::cli
