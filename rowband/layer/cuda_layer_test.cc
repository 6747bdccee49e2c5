// RowParallelLinear on the cuda engine: operands and results in device memory, calls on a stream.
// Skipped, with a message, without a GPU. scripts/test-gpu runs these.
#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <optional>
#include <random>

#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/graph_support.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/layer/test_support.h"
#include "rowband/numerics/reference.h"

namespace rowband::cuda {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

// A layer of one rank, and its calls with host operands.
class GpuLayer {
 public:
  GpuLayer(Communicator& comm, int devices, Fp8Weight weight, std::vector<Bf16> bias,
           const LayerOptions& options)
      : comm_(comm),
        engine_(engine_for(comm.rank(), comm.size(), devices)),
        layer_(RowParallelLinear::create(comm, engine_, std::move(weight), std::move(bias),
                                         options)) {}
  ~GpuLayer() { comm_.barrier(Deadline::after(60s)); }

  std::vector<Bf16> forward(const std::vector<Bf16>& x, std::int64_t rows) {
    const auto on_device = engine_->upload(x.data(), x.size() * sizeof(Bf16));
    return fetch(layer_->forward(static_cast<const Bf16*>(on_device.get()), rows, depth()));
  }
  std::vector<Bf16> fetch(const Output& y, cudaStream_t stream = nullptr) {
    std::vector<Bf16> host(static_cast<std::size_t>(y.rows * y.cols));
    engine_->download(host.data(), y.data, host.size() * sizeof(Bf16), stream);
    layer_->finish(stream);
    return host;
  }
  // Throws with the difference, so that run_ranks reports it.
  void expect_exact(const Output& y, std::int64_t rows, std::int64_t call,
                    cudaStream_t stream = nullptr) {
    const auto host = fetch(y, stream);
    std::string difference =
        exact_difference({host.data(), y.rows, y.cols}, rows, depth(), comm_.size(), call);
    if (y.cols != cols()) difference = std::to_string(y.cols) + " columns";
    if (difference.empty()) return;
    throw std::runtime_error("rank " + std::to_string(comm_.rank()) +
                             ", M=" + std::to_string(rows) + ": " + difference);
  }
  void forward_exact(std::int64_t rows, std::int64_t call) {
    const auto x = exact_bf16(rows, depth(), comm_.rank(), call);
    const auto on_device = engine_->upload(x.data(), x.size() * sizeof(Bf16));
    expect_exact(layer_->forward(static_cast<const Bf16*>(on_device.get()), rows, depth()), rows,
                 call);
  }
  std::int64_t cols() const { return layer_->weight().cols; }
  std::int64_t depth() const { return layer_->weight().depth; }
  RowParallelLinear& operator*() { return *layer_; }
  RowParallelLinear* operator->() { return layer_.get(); }
  Engine& engine() { return *engine_; }

 private:
  Communicator& comm_;
  const std::shared_ptr<Engine> engine_;
  const std::unique_ptr<RowParallelLinear> layer_;
};

LayerOptions gpu_options(std::int64_t max_rows) {
  LayerOptions options = layer_options(max_rows);
  options.policy.min_fill = 0;
  options.deadline = 10s;
  return options;
}

void with_exact_layers(int world, int devices, const LayerOptions& options,
                       const std::function<void(Communicator&, GpuLayer&)>& body) {
  run_ranks(world, [&](Communicator& comm) {
    GpuLayer layer(comm, devices, to_slice(ExactWeight(264, 256)), {}, options);
    body(comm, layer);
  });
}

TEST(CudaLayer, D04_O02_FusedAndDeclinedCallsAreExact) {
  ROWBAND_NEEDS_GPUS(1);
  for (int devices = 1; devices <= gpus(); ++devices) {
    for (int world : {1, 2, 4}) {
      with_exact_layers(world, devices, gpu_options(1200), [](Communicator&, GpuLayer& layer) {
        std::int64_t call = 0;
        for (std::int64_t rows : {1200, 1, 63, 64, 0, 700, 1201, 3000, 1200, 5}) {
          layer.forward_exact(rows, ++call);
        }
        EXPECT_EQ(layer->counters().of(Decision::kFuse), 4);
        EXPECT_EQ(layer->counters().of(Decision::kTooFewRows), 4);
        EXPECT_EQ(layer->counters().of(Decision::kTooManyRows), 2);
      });
    }
  }
}

TEST(CudaLayer, N01_N08_BothPathsAreAccurateWithAndWithoutBias) {
  ROWBAND_NEEDS_GPUS(1);
  constexpr int kWorld = 2;
  constexpr std::int64_t kRows = 300, kCols = 264, kDepth = 384;
  std::vector<RandomWeight> weights;
  std::vector<std::vector<Bf16>> xs;
  for (int rank = 0; rank < kWorld; ++rank) {
    weights.emplace_back(kCols, kDepth, 40 + rank);
    xs.push_back(random_bf16(kRows * kDepth, 50 + rank));
  }
  const auto bias = random_bf16(kCols, 60);
  std::vector<std::vector<E4m3>> codes(kWorld);
  std::vector<std::vector<float>> scales(kWorld);
  std::vector<ActivationView> x_views;
  std::vector<WeightView> w_views;
  std::vector<std::int64_t> all_rows;
  for (std::int64_t row = 0; row < kRows; ++row) all_rows.push_back(row);
  for (int rank = 0; rank < kWorld; ++rank) {
    codes[rank].resize(kRows * kDepth);
    scales[rank].resize(kRows * kDepth / 128);
    quantize_activations(xs[rank].data(), kRows, kDepth, kDepth, ScaleFormat::kFp32,
                         codes[rank].data(), kDepth, scales[rank].data());
    x_views.push_back(
        {codes[rank].data(), kRows, kDepth, kDepth, scales[rank].data(), kDepth / 128, 1});
    w_views.push_back(weights[rank].view());
  }
  for (const bool with_bias : {false, true}) {
    const auto want =
        reference_rows(x_views, w_views, with_bias ? bias.data() : nullptr, all_rows, 2);
    for (const bool fused : {false, true}) {
      LayerOptions options = gpu_options(512);
      options.policy.enabled = fused;
      std::vector<std::vector<Bf16>> results(kWorld);
      run_ranks(kWorld, [&](Communicator& comm) {
        const int rank = comm.rank();
        GpuLayer layer(comm, gpus(), to_slice(weights[rank]),
                       with_bias ? bias : std::vector<Bf16>(), options);
        results[rank] = layer.forward(xs[rank], kRows);
        EXPECT_TRUE(layer->weight().codes.empty());  // the GPU holds them
      });
      EXPECT_EQ(results[0], results[1]);
      EXPECT_LE(relative_l2(results[0], want), 3e-3) << "bias " << with_bias << " fused " << fused;
    }
  }
}

TEST(CudaLayer, S08_M05_StridedInputAndTheCallersOutput) {
  ROWBAND_NEEDS_GPUS(1);
  with_exact_layers(2, gpus(), gpu_options(512), [](Communicator& comm, GpuLayer& layer) {
    for (std::int64_t rows : {33, 40, 129, 500}) {  // declined, declined, fused, fused
      const std::int64_t depth = layer.depth(), stride = depth + 40;
      const auto dense = exact_bf16(rows, depth, comm.rank(), rows);
      std::vector<Bf16> wide(static_cast<std::size_t>(rows * stride), to_bf16(1e30f));
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(dense.data() + row * depth, depth, wide.data() + row * stride + 9);
      }
      const auto x = layer.engine().upload(wide.data(), wide.size() * sizeof(Bf16));
      const auto out = layer.engine().allocate(rows * layer.cols() * sizeof(Bf16));
      const Output y = layer->forward(static_cast<const Bf16*>(x.get()) + 9, rows, stride,
                                      static_cast<Bf16*>(out.get()));
      EXPECT_EQ(y.data, out.get());
      layer.expect_exact(y, rows, rows);
    }
  });
}

TEST(CudaLayer, R04_AResultOfEitherPathStaysUntouchedThroughTheNextCall) {
  ROWBAND_NEEDS_GPUS(1);
  with_exact_layers(2, gpus(), gpu_options(600), [](Communicator& comm, GpuLayer& layer) {
    const std::int64_t shapes[] = {600, 10, 601, 20, 500, 500, 7, 8, 602};
    std::vector<std::shared_ptr<const void>> xs;
    Output before;
    for (std::int64_t call = 0; call < 9; ++call) {
      const auto x = exact_bf16(shapes[call], layer.depth(), comm.rank(), call);
      xs.push_back(layer.engine().upload(x.data(), x.size() * sizeof(Bf16)));
      const Output y =
          layer->forward(static_cast<const Bf16*>(xs.back().get()), shapes[call], layer.depth());
      if (call > 0) layer.expect_exact(before, shapes[call - 1], call - 1);
      before = y;
    }
    layer->finish();
  });
}

TEST(CudaLayer, O03_NoCallUpToTheCapacityAllocates) {
  ROWBAND_NEEDS_GPUS(1);
  for (const bool fused : {true, false}) {
    LayerOptions options = gpu_options(2000);
    options.policy.enabled = fused;
    options.policy.min_fill = 0.7;
    with_exact_layers(2, gpus(), options, [&](Communicator& comm, GpuLayer& layer) {
      const auto x = exact_bf16(2000, layer.depth(), comm.rank(), 3);
      const auto on_device = layer.engine().upload(x.data(), x.size() * sizeof(Bf16));
      const auto deadline = [] { return Deadline::after(60s); };
      comm.barrier(deadline());
      const MemoryWatch watch(layer.engine().device());
      comm.barrier(deadline());
      std::minstd_rand same_on_all_ranks(5);
      for (int call = 0; call < 1000; ++call) {
        const auto rows = static_cast<std::int64_t>(1 + same_on_all_ranks() % 2000);
        layer->forward(static_cast<const Bf16*>(on_device.get()), rows, layer.depth());
      }
      layer->finish();
      comm.barrier(deadline());
      SCOPED_TRACE(fused ? "fused" : "base path");
      watch.expect_none_taken();
      comm.barrier(deadline());
    });
  }
}

// A declined call of ranks that share a GPU goes through the host, which no graph captures.
bool captures(std::int64_t rows) { return rows >= 64 || gpus() == 2; }

TEST(CudaLayer, G01_CallsOfEitherPathAreCapturedIntoGraphsAndReplay) {
  ROWBAND_NEEDS_GPUS(1);
  with_exact_layers(2, gpus(), gpu_options(900), [&](Communicator& comm, GpuLayer& layer) {
    check(cudaSetDevice(comm.rank() % gpus()), "choosing the rank's device");
    const std::int64_t depth = layer.depth();
    const TestStream stream(comm);
    const auto memory = layer.engine().allocate(900 * depth * sizeof(Bf16));
    auto* x = static_cast<Bf16*>(memory.get());
    const std::int64_t shapes[] = {900, 64, 300, 40};
    const auto forward = [&](std::int64_t rows) {
      return layer->forward(x, rows, depth, nullptr, nullptr, stream.get());
    };
    std::optional<Graph> graphs[4];
    Output results[4];
    for (int i = 0; i < 4; ++i) {
      if (!captures(shapes[i])) continue;
      graphs[i].emplace(stream.get(), [&] { results[i] = forward(shapes[i]); });
    }
    std::minstd_rand same_on_all_ranks(11);
    for (int call = 1; call <= 100; ++call) {
      const std::size_t chosen = same_on_all_ranks() % 4;
      const std::int64_t rows = shapes[chosen];
      const auto host = exact_bf16(rows, depth, comm.rank(), call);
      layer.engine().copy(x, host.data(), host.size() * sizeof(Bf16), stream.get());
      Output y = results[chosen];
      if (!graphs[chosen] || same_on_all_ranks() % 3 == 0) {
        y = forward(rows);  // beside the graphs
      } else {
        graphs[chosen]->replay();
      }
      layer.expect_exact(y, rows, call, stream.get());
    }
    layer->close();
  });
}

TEST(CudaLayer, G07_OperandsInMappedMemoryEagerAndCaptured) {
  ROWBAND_NEEDS_GPUS(1);
  with_exact_layers(2, gpus(), gpu_options(900), [](Communicator& comm, GpuLayer& layer) {
    const int device = comm.rank() % gpus();
    check(cudaSetDevice(device), "choosing the rank's device");
    const std::int64_t depth = layer.depth();
    const MappedMemory x(device, 300 * depth * sizeof(Bf16));
    const MappedMemory out(device, 300 * layer.cols() * sizeof(Bf16));
    const TestStream stream(comm);
    for (std::int64_t rows : {300, 40}) {  // fused, declined
      Output y;
      const auto forward = [&] {
        y = layer->forward(x.as<Bf16>(), rows, depth, out.as<Bf16>(), nullptr, stream.get());
      };
      std::optional<Graph> graph;
      if (captures(rows)) graph.emplace(stream.get(), forward);
      for (int call = 1; call < 10; ++call) {
        const auto host = exact_bf16(rows, depth, comm.rank(), call);
        layer.engine().copy(x.as<Bf16>(), host.data(), host.size() * sizeof(Bf16), stream.get());
        if (graph && call % 2 == 0) {
          graph->replay();
        } else {
          forward();
        }
        EXPECT_EQ(y.data, out.as<Bf16>());
        layer.expect_exact(y, rows, call, stream.get());
      }
    }
    comm.barrier(Deadline::after(60s));  // unmapping may wait for the device
  });
}

TEST(CudaLayer, R11_HostMemoryMisalignedAndAliasedOutputsAreRefusedAndTheLayerGoesOn) {
  ROWBAND_NEEDS_GPUS(1);
  for (int world : {2, 3, 4}) {
    with_exact_layers(world, gpus(), gpu_options(512), [](Communicator& comm, GpuLayer& layer) {
      for (std::int64_t rows : {10, 300}) {  // declined, fused
        const auto host = exact_bf16(rows, layer.depth(), comm.rank(), rows);
        const auto memory = layer.engine().upload(host.data(), host.size() * sizeof(Bf16));
        const auto* x = static_cast<const Bf16*>(memory.get());
        const auto out = layer.engine().allocate(1 << 20);
        const auto refused = [&](const char* words, const Bf16* from, const Bf16* to) {
          try {
            layer->forward(from, rows, layer.depth(), const_cast<Bf16*>(to));
            ADD_FAILURE() << "accepted: " << words;
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
            EXPECT_THAT(error.what(), HasSubstr(words));
          }
        };
        refused("host memory", host.data(), nullptr);
        refused("host memory", x, host.data());
        refused("multiple of 16", x, static_cast<Bf16*>(out.get()) + 1);
        refused("out overlaps x", x, x);
        refused("out overlaps x", x, x + rows * layer.depth() - 8);
        const Output before = layer->forward(x, rows, layer.depth());
        refused("out overlaps an earlier result", x, before.data);
        refused("out overlaps an earlier result", x, before.data + rows * before.cols - 8);
        layer.expect_exact(before, rows, rows);
        layer.forward_exact(rows, 5);
      }
    });
  }
}

TEST(CudaLayer, DebugCheckLogsBothNumbers) {
  ROWBAND_NEEDS_GPUS(1);
  const LogCapture log;
  LayerOptions options = gpu_options(512);
  options.debug_check = true;
  with_exact_layers(2, gpus(), options,
                    [](Communicator&, GpuLayer& layer) { layer.forward_exact(400, 1); });
  const auto lines = log.lines_with("debug check");
  ASSERT_EQ(lines.size(), 2u);
  for (const auto& line : lines) {
    EXPECT_THAT(line, HasSubstr("fused against base 0.000e+00, of fused against itself 0.000e+00"));
  }
}

TEST(CudaLayer, D06_AFailedCallIsAnErrorAtFinishAndAtTheNextCall) {
  ROWBAND_NEEDS_GPUS(1);
  LayerOptions options = gpu_options(512);
  options.deadline = 500ms;  // too short for NCCL's start, so on one GPU
  with_exact_layers(2, 1, options, [](Communicator& comm, GpuLayer& layer) {
    layer.forward_exact(400, 1);
    if (comm.rank() == 1) return;
    const auto x = exact_bf16(400, layer.depth(), 0, 2);
    const auto memory = layer.engine().upload(x.data(), x.size() * sizeof(Bf16));
    const auto* on_device = static_cast<const Bf16*>(memory.get());
    layer->forward(on_device, 400, layer.depth());
    for (int again = 0; again < 2; ++again) {
      try {
        again == 0 ? layer->finish() : (void)layer->forward(on_device, 400, layer.depth());
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPoisoned);
        EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      }
    }
  });
}

TEST(CudaLayer, LayersOfOneEngineShareTheirGroupAndEndInAnyOrder) {
  ROWBAND_NEEDS_GPUS(1);
  LayerOptions options = gpu_options(256);
  options.policy.enabled = false;  // the base path's all-reduce
  run_ranks(2, [&](Communicator& comm) {
    const auto engine = engine_for(comm.rank(), 2, gpus());
    const auto make = [&] {
      return RowParallelLinear::create(comm, engine, to_slice(ExactWeight(264, 256)), {}, options);
    };
    const auto x = exact_bf16(100, 256, comm.rank(), 4);
    const auto memory = engine->upload(x.data(), x.size() * sizeof(Bf16));
    const auto sums = [&](RowParallelLinear& layer) {
      const Output y = layer.forward(static_cast<const Bf16*>(memory.get()), 100, 256);
      std::vector<Bf16> host(100 * 264);
      engine->download(host.data(), y.data, host.size() * sizeof(Bf16), nullptr);
      layer.finish();
      return exact_difference({host.data(), 100, 264}, 100, 256, 2, 4);
    };
    auto first = make(), second = make();
    EXPECT_EQ(sums(*second), "");
    first.reset();
    EXPECT_EQ(sums(*second), "");
    second.reset();
    EXPECT_EQ(sums(*make()), "");  // of a group made anew
    comm.barrier(Deadline::after(60s));
  });
}

// Of layers whose op cannot be made for a fault of rank 1: the verdicts tell it, calls are exact.
void expect_unavailable(const std::function<void(FaultHooks&)>& fault, const char* words) {
  const LogCapture quiet;
  run_ranks(2, [&](Communicator& comm) {
    LayerOptions options = gpu_options(512);
    auto faults = std::make_shared<FaultHooks>();
    if (comm.rank() == 1) fault(*faults);
    options.faults = faults;
    GpuLayer layer(comm, gpus(), to_slice(ExactWeight(264, 256)), {}, options);
    EXPECT_EQ(layer->verdict(400).decision, Decision::kUnavailable);
    EXPECT_THAT(layer->verdict(400).reason, AllOf(HasSubstr("rank 1"), HasSubstr(words)));
    for (std::int64_t rows : {400, 10}) layer.forward_exact(rows, rows);
    EXPECT_EQ(layer->counters().of(Decision::kUnavailable), 2);
  });
}

TEST(CudaLayer, O01_NoRoomForTheWindowDeclinesOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  expect_unavailable([](FaultHooks& f) { f.available_bytes = 4096; }, "4096 bytes free");
}

TEST(CudaLayer, P01_GpusThatCannotReachOneAnotherDeclineOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  expect_unavailable([](FaultHooks& f) { f.deny_peer_access = true; }, "cannot reach the memory");
}

}  // namespace
}  // namespace rowband::cuda
