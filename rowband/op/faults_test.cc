// What a fault gives: an error in words on every rank, within the deadline, and never a wrong
// result.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "rowband/base/error.h"
#include "rowband/testing/exact.h"
#include "rowband/testing/watched_communicator.h"

namespace rowband {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

struct Failure {
  ErrorCode code = ErrorCode::kInternal;
  std::string text;
};

// What body throws on each rank; an empty text where it throws nothing.
std::vector<Failure> failures(int world, const std::function<void(Communicator&)>& body) {
  std::vector<Failure> all(world);
  run_ranks(world, [&](Communicator& comm) {
    try {
      body(comm);
    } catch (const Error& error) {
      all[comm.rank()] = {error.code(), error.what()};
    }
    comm.barrier(Deadline::after(30s));  // nobody leaves while a peer still looks at it
  });
  return all;
}

std::shared_ptr<FaultHooks> hooks(int rank, int faulty_rank, auto change) {
  auto faults = std::make_shared<FaultHooks>();
  if (rank == faulty_rank) change(*faults);
  return faults;
}

GemmAllReduceOptions small_options() { return exact_options(600, 64, 128); }

std::unique_ptr<GemmAllReduce> make(Communicator& comm, const GemmAllReduceOptions& options) {
  return GemmAllReduce::create(comm, test_engine(comm.rank()), options);
}

TEST(Faults, D01_AnAllocationThatFailsOnOneRankFailsOnAllWithItsReason) {
  const auto all = failures(4, [](Communicator& comm) {
    auto options = small_options();
    options.faults = hooks(comm.rank(), 1, [](auto& f) { f.fail_window_allocation = true; });
    make(comm, options);
  });
  for (const auto& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 1"), HasSubstr("fault hook")));
  }
}

TEST(Faults, O01_NoRoomNamesNeededAndFreeBytes) {
  const auto window = GemmAllReduce::window_bytes(*test_engine(0), small_options(), 4);
  const auto all = failures(4, [](Communicator& comm) {
    auto options = small_options();
    options.faults = hooks(comm.rank(), 2, [](auto& f) { f.available_bytes = 4096; });
    make(comm, options);
  });
  for (const auto& failure : all) {
    EXPECT_EQ(failure.code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(failure.text,
                AllOf(HasSubstr("rank 2"), HasSubstr(std::to_string(window)), HasSubstr("4096")));
  }
}

// The host engine but for one method, which throws.
class FailingEngine final : public Engine {
 public:
  enum class In { kRoom, kUpload };
  FailingEngine(std::shared_ptr<Engine> engine, In in)
      : Engine(make_planner(EngineKind::kHost, {})), engine_(std::move(engine)), in_(in) {}

  std::string_view name() const override { return engine_->name(); }
  std::string description() const override { return engine_->description(); }
  std::string why_no_room(std::int64_t bytes, int world, const FaultHooks* faults) const override {
    fail_in(In::kRoom);
    return engine_->why_no_room(bytes, world, faults);
  }
  std::unique_ptr<FusedExecutor> make_fused(Communicator& comm, const PlanSpec& spec,
                                            const FusedOptions& options) override {
    return engine_->make_fused(comm, spec, options);
  }
  void gemm(const ActivationView& x, const WeightView& w, const Bf16* bias, Bf16* out,
            Timeline* timeline, void* stream) override {
    engine_->gemm(x, w, bias, out, timeline, stream);
  }
  ActivationView quantize(const Bf16* x, std::int64_t rows, std::int64_t depth, std::int64_t stride,
                          ScaleFormat format, E4m3* codes, float* scales, void* stream) override {
    return engine_->quantize(x, rows, depth, stride, format, codes, scales, stream);
  }
  void add_bias(Bf16* out, std::int64_t rows, std::int64_t cols, const Bf16* bias,
                void* stream) override {
    engine_->add_bias(out, rows, cols, bias, stream);
  }
  std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Deadline deadline) override {
    return engine_->make_all_reduce(comm, deadline);
  }
  bool on_host() const override { return true; }
  int device() const override { return -1; }
  std::string why_not_reachable(const void*) const override { return ""; }
  std::size_t output_alignment() const override { return engine_->output_alignment(); }
  std::shared_ptr<void> allocate(std::size_t bytes) override { return engine_->allocate(bytes); }
  void synchronize(void* stream) override { engine_->synchronize(stream); }
  void finish() override { engine_->finish(); }
  std::shared_ptr<const void> upload(const void* host, std::size_t bytes) override {
    fail_in(In::kUpload);
    return engine_->upload(host, bytes);
  }
  void download(void* host, const void* from, std::size_t bytes, void* stream) override {
    engine_->download(host, from, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, void* stream) override {
    engine_->copy(to, from, bytes, stream);
  }

 private:
  void fail_in(In in) const {
    if (in == in_) throw Error(ErrorCode::kUnavailable, "this rank's engine fails");
  }

  const std::shared_ptr<Engine> engine_;
  const In in_;
};

TEST(Faults, D01_AnEngineThatThrowsOnOneRankDoesNotKeepItsPeersWaiting) {
  for (const auto in : {FailingEngine::In::kRoom, FailingEngine::In::kUpload}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto all = failures(3, [&](Communicator& comm) {
      std::shared_ptr<Engine> engine = test_engine(comm.rank());
      if (comm.rank() == 1) engine = std::make_shared<FailingEngine>(engine, in);
      GemmAllReduce::create(comm, engine, small_options());
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    for (const auto& failure : all) {
      EXPECT_EQ(failure.code, ErrorCode::kUnavailable);
      EXPECT_THAT(failure.text, AllOf(HasSubstr("rank 1"), HasSubstr("engine fails")));
    }
  }
}

TEST(Faults, R02_ATransportThatMovesNothingFailsTheSelfTest) {
  for (std::int64_t from : {1, 2}) {  // also from the second call on
    for (int faulty = 0; faulty < 3; ++faulty) {
      for (const auto& mode : all_modes(small_options())) {
        const auto all = failures(3, [&](Communicator& comm) {
          auto options = mode;
          options.faults =
              hooks(comm.rank(), faulty, [&](auto& f) { f.skip_transfers_from = from; });
          make(comm, options);
        });
        for (const auto& failure : all) {
          EXPECT_EQ(failure.code, ErrorCode::kCorrupted) << failure.text;
          EXPECT_THAT(failure.text, AllOf(HasSubstr("self-test"),
                                          HasSubstr(std::string(transport_name(mode.transport)))));
        }
      }
    }
  }
}

TEST(Faults, R02_OneChunkThatIsNotMovedFailsTheSelfTest) {
  for (int chunk : {0, 3}) {
    for (const auto& mode : all_modes(exact_options(2048, 64, 128))) {
      const auto all = failures(2, [&](Communicator& comm) {
        auto options = mode;
        options.faults = hooks(comm.rank(), 1, [&](auto& f) {
          f.skip_transfers_from = 1;
          f.skip_only_chunk = chunk;
        });
        make(comm, options);
      });
      for (const auto& failure : all) EXPECT_EQ(failure.code, ErrorCode::kCorrupted) << chunk;
    }
  }
}

TEST(Faults, D06_APeerThatSendsNothingIsNamedWithLegAndChunkWithinTheDeadline) {
  for (const auto& mode : all_modes(small_options())) {
    const auto begin = std::chrono::steady_clock::now();
    const auto all = failures(3, [&](Communicator& comm) {
      auto options = mode;
      options.self_test = false;
      options.deadline = 300ms;
      options.faults = hooks(comm.rank(), 2, [](auto& f) { f.drop_transfers_from = 3; });
      const auto op = make(comm, options);
      const ExactWeight w(64, 128);
      for (int call = 1; call <= 3; ++call) run_exact(comm, *op, w, 600, call);
    });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    for (const auto& failure : all) {
      EXPECT_THAT(failure.text, HasSubstr("chunk 0 of rank 2 (scatter leg, call 3)"));
    }
  }
}

TEST(Faults, D06_ARankThatSleepsPastTheDeadlineIsAnErrorOnEveryRank) {
  const auto all = failures(2, [](Communicator& comm) {
    auto options = small_options();
    options.self_test = false;
    options.deadline = 200ms;
    options.faults = hooks(comm.rank(), 1, [](auto& f) {
      f.delay_call = 2;
      f.delay = 700ms;
    });
    const auto op = make(comm, options);
    const ExactWeight w(64, 128);
    run_exact(comm, *op, w, 600, 1);
    run_exact(comm, *op, w, 600, 2);
  });
  EXPECT_EQ(all[0].code, ErrorCode::kDeadline);
  EXPECT_THAT(all[0].text, AllOf(HasSubstr("rank 1"), HasSubstr("0.2 s")));
  EXPECT_EQ(all[1].code, ErrorCode::kPoisoned);
  EXPECT_THAT(all[1].text, HasSubstr("rank 0 reported"));
}

TEST(Faults, D06_ARankThatLeavesIsNamedLongBeforeTheDeadline) {
  const auto begin = std::chrono::steady_clock::now();
  auto comms = make_thread_communicators(2);
  std::string text;
  std::thread survivor([&] {
    const auto op = make(*comms[0], small_options());
    try {
      run_exact(*comms[0], *op, ExactWeight(64, 128), 600, 1);
    } catch (const Error& error) {
      text = error.what();
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    }
  });
  std::thread leaver([&] {
    make(*comms[1], small_options()).reset();
    comms[1].reset();
  });
  leaver.join();
  survivor.join();
  EXPECT_THAT(text, HasSubstr("rank 1 is gone"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
}

TEST(Faults, D03_DifferentMIsNamedWithBothNumbersOnBothRanks) {
  for (const auto& [zero, one] : {std::pair{256, 384}, {0, 256}, {600, 0}, {1, 2}}) {
    const auto all = failures(2, [&, zero = zero, one = one](Communicator& comm) {
      auto options = small_options();
      options.deadline = 5s;
      const auto op = make(comm, options);
      run_exact(comm, *op, ExactWeight(64, 128), comm.rank() == 0 ? zero : one, 1);
    });
    for (const auto& failure : all) {
      EXPECT_THAT(failure.text, AllOf(HasSubstr(std::to_string(zero) + " on rank 0"),
                                      HasSubstr(std::to_string(one) + " on rank 1")));
    }
  }
}

TEST(Faults, D03_DifferentOptionsAreNamedAtConstruction) {
  const auto differ = [](auto change, const char* name) {
    const auto all = failures(3, [&](Communicator& comm) {
      auto options = small_options();
      if (comm.rank() == 1) change(options);
      make(comm, options);
    });
    for (const auto& failure : all) {
      EXPECT_EQ(failure.code, ErrorCode::kDisagreement);
      EXPECT_THAT(failure.text, HasSubstr(name));
    }
  };
  differ([](auto& o) { o.max_rows = 601; }, "max_rows");
  differ([](auto& o) { o.cols = 72; }, "N");
  differ([](auto& o) { o.depth = 256; }, "K per rank");
  differ([](auto& o) { o.wire = Wire::kFp8; }, "wire");
  differ([](auto& o) { o.transport = Transport::kCopyEngine; }, "transport");
  differ([](auto& o) { o.chunks = 2; }, "chunks");
  differ([](auto& o) { o.slots = 3; }, "slots");
  differ([](auto& o) { o.deadline = 7s; }, "deadline");
}

TEST(Faults, C02_BadOptionsAreRefusedOnEveryRankBeforeAnythingIsAllocated) {
  const auto refused = [](auto change, const char* words) {
    const auto all = failures(2, [&](Communicator& comm) {
      auto options = small_options();
      // Were the window reached, this hook would speak instead.
      options.faults = hooks(0, 0, [](auto& f) { f.fail_window_allocation = true; });
      change(options);
      make(comm, options);
    });
    for (const auto& failure : all) {
      EXPECT_EQ(failure.code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(failure.text, HasSubstr(words));
    }
  };
  refused([](auto& o) { o.cols = 12; }, "multiple of 8");
  refused([](auto& o) { o.depth = 576; }, "multiple of the scale block 128");
  refused([](auto& o) { o.max_rows = 0; }, "max_rows=0");
  refused([](auto& o) { o.chunks = 0; }, "chunks=0");
  refused([](auto& o) { o.slots = 9; }, "slots=9");
  refused([](auto& o) { o.deadline = 0s; }, "deadline");
}

TEST(Faults, AFailedCallPoisonsTheOpOnEveryRankAndLaterCallsFailAtOnce) {
  for (const auto& mode : all_modes(small_options())) {
    failures(3, [&](Communicator& comm) {
      auto options = mode;
      options.self_test = false;
      options.faults = hooks(comm.rank(), 1, [](auto& f) { f.throw_in_call = 2; });
      const auto op = make(comm, options);
      const ExactWeight w(64, 128);
      EXPECT_EQ(op->poison(), "");
      run_exact(comm, *op, w, 600, 1);
      EXPECT_THROW(run_exact(comm, *op, w, 600, 2), Error);
      EXPECT_THAT(op->poison(), HasSubstr("fault hook"));
      const auto begin = std::chrono::steady_clock::now();
      try {
        run_exact(comm, *op, w, 600, 3);
        ADD_FAILURE() << "a poisoned op ran";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPoisoned);
        EXPECT_THAT(error.what(), HasSubstr("fault hook"));
      }
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
    });
  }
}

TEST(Faults, AWorkerThatFailsEndsTheWaitsOfTheOtherWorkers) {
  const auto begin = std::chrono::steady_clock::now();
  const auto all = failures(3, [](Communicator& comm) {
    // Rank 1 sees rank 2 gone; its worker that waits for rank 0 could only reach the deadline.
    WatchedCommunicator watched(comm, [&](int peer) { return comm.rank() != 1 || peer != 2; });
    auto options = small_options();
    options.self_test = false;
    options.deadline = 60s;
    options.faults = hooks(0, 0, [](auto& f) { f.drop_transfers_from = 1; });
    const auto op = GemmAllReduce::create(watched, test_engine(comm.rank(), 3), options);
    run_exact(watched, *op, ExactWeight(64, 128), 96, 1);
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  for (const auto& failure : all) EXPECT_THAT(failure.text, HasSubstr("rank 2 is gone"));
}

TEST(Faults, ARankThatRefusesItsArgumentsDoesNotKeepItsPeersWaiting) {
  const auto all = failures(2, [](Communicator& comm) {
    const auto op = make(comm, small_options());
    const ExactWeight w(64, 128);
    ExactActivations x(600, 128, comm.rank(), 1);
    ActivationView view = x.view();
    if (comm.rank() == 1) view.codes = nullptr;
    op->run(view, w.view());
  });
  EXPECT_EQ(all[0].code, ErrorCode::kDisagreement);
  EXPECT_THAT(all[0].text, HasSubstr("rank 1 refused"));
  EXPECT_EQ(all[1].code, ErrorCode::kInvalidArgument);
}

TEST(Faults, L09_CloseIsIdempotentLocalAndSafeAfterEveryFailure) {
  for (const auto& mode : all_modes(small_options())) {
    failures(2, [&](Communicator& comm) {
      const auto op = make(comm, mode);
      const ExactWeight w(64, 128);
      run_exact(comm, *op, w, 600, 1);
      if (comm.rank() == 1) std::this_thread::sleep_for(20ms);  // closes later than its peer
      op->close();
      op->close();
      EXPECT_FALSE(op->why_not({}, {}).empty());
      EXPECT_THROW(run_exact(comm, *op, w, 600, 2), Error);
    });
  }
}

TEST(Faults, ADestroyedOpLeavesRoomForTheNext) {
  run_ranks(2, [](Communicator& comm) {
    const ExactWeight w(64, 128);
    for (int i = 0; i < 50; ++i) {
      const auto op = make(comm, small_options());
      run_exact(comm, *op, w, 1 + i, i);
    }
  });
}

}  // namespace
}  // namespace rowband
