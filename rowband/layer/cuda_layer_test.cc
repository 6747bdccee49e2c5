// RowParallelLinear on the cuda engine: operands and results in device memory, calls on a stream.
// Skipped, with a message, without a GPU. scripts/test-gpu runs these.
#include <cuda_runtime.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "rowband/engines/cuda/testing.h"
#include "rowband/engines/fault_hooks.h"
#include "rowband/layer/test_support.h"
#include "rowband/numerics/reference.h"

namespace rowband::cuda {
namespace {

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
  std::vector<Bf16> fetch(const Output& y) {
    std::vector<Bf16> host(static_cast<std::size_t>(y.rows * y.cols));
    engine_->download(host.data(), y.data, host.size() * sizeof(Bf16), nullptr);
    layer_->finish();
    return host;
  }
  // Throws with the difference, so that run_ranks reports it.
  void forward_exact(std::int64_t rows, std::int64_t call) {
    const auto host = forward(exact_bf16(rows, depth(), comm_.rank(), call), rows);
    const auto difference = exact_difference({host.data(), rows, layer_->weight().cols}, rows,
                                             depth(), comm_.size(), call);
    if (difference.empty()) return;
    throw std::runtime_error("rank " + std::to_string(comm_.rank()) +
                             ", M=" + std::to_string(rows) + ": " + difference);
  }
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
  for (int devices = 1; devices <= std::min(device_count(), 2); ++devices) {
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
        GpuLayer layer(comm, std::min(device_count(), 2), to_slice(weights[rank]),
                       with_bias ? bias : std::vector<Bf16>(), options);
        results[rank] = layer.forward(xs[rank], kRows);
        EXPECT_TRUE(layer->weight().codes.empty());  // the GPU holds them
      });
      EXPECT_EQ(results[0], results[1]);
      EXPECT_LE(relative_l2(results[0], want), 3e-3) << "bias " << with_bias << " fused " << fused;
    }
  }
}

TEST(CudaLayer, S08_M05_StridedInputAndOutput) {
  ROWBAND_NEEDS_GPUS(1);
  for (std::int64_t rows : {40, 500}) {  // declined, fused
    with_exact_layers(2, 1, gpu_options(512), [&](Communicator& comm, GpuLayer& layer) {
      const std::int64_t depth = layer.depth(), stride = depth + 40;
      const auto dense = exact_bf16(rows, depth, comm.rank(), 7);
      std::vector<Bf16> wide(static_cast<std::size_t>(rows * stride), to_bf16(1e30f));
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(dense.data() + row * depth, depth, wide.data() + row * stride + 9);
      }
      const auto x = layer.engine().upload(wide.data(), wide.size() * sizeof(Bf16));
      const auto out = layer.engine().allocate(static_cast<std::size_t>(rows * 264) * sizeof(Bf16));
      const Output y = layer->forward(static_cast<const Bf16*>(x.get()) + 9, rows, stride,
                                      static_cast<Bf16*>(out.get()));
      EXPECT_EQ(y.data, out.get());
      const auto host = layer.fetch(y);
      EXPECT_EQ(exact_difference({host.data(), rows, 264}, rows, depth, 2, 7), "");
    });
  }
}

TEST(CudaLayer, R04_AResultOfEitherPathStaysUntouchedThroughTheNextCall) {
  ROWBAND_NEEDS_GPUS(1);
  with_exact_layers(2, 1, gpu_options(600), [](Communicator& comm, GpuLayer& layer) {
    const std::int64_t shapes[] = {600, 10, 601, 20, 500, 500, 7, 8, 602};
    std::vector<std::shared_ptr<const void>> xs;
    Output before;
    for (std::int64_t call = 0; call < 9; ++call) {
      const auto x = exact_bf16(shapes[call], layer.depth(), comm.rank(), call);
      xs.push_back(layer.engine().upload(x.data(), x.size() * sizeof(Bf16)));
      const Output y =
          layer->forward(static_cast<const Bf16*>(xs.back().get()), shapes[call], layer.depth());
      if (call > 0) {
        const auto host = layer.fetch(before);
        EXPECT_EQ(exact_difference({host.data(), before.rows, 264}, before.rows, layer.depth(), 2,
                                   call - 1),
                  "");
      }
      before = y;
    }
    layer->finish();
  });
}

// What the device's pool has handed out, and what is free of the device.
struct Memory {
  std::uint64_t pool = 0;
  std::size_t free = 0;

  explicit Memory(int device) {
    cudaMemPool_t of_device;
    std::size_t total = 0;
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    EXPECT_EQ(cudaDeviceGetDefaultMemPool(&of_device, device), cudaSuccess);
    EXPECT_EQ(cudaMemPoolGetAttribute(of_device, cudaMemPoolAttrUsedMemCurrent, &pool),
              cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  }
  bool operator==(const Memory&) const = default;
};

TEST(CudaLayer, O03_NoCallUpToTheCapacityAllocates) {
  ROWBAND_NEEDS_GPUS(1);
  for (const bool fused : {true, false}) {
    LayerOptions options = gpu_options(2000);
    options.policy.enabled = fused;
    options.policy.min_fill = 0.7;
    with_exact_layers(2, 1, options, [&](Communicator& comm, GpuLayer& layer) {
      const auto x = exact_bf16(2000, layer.depth(), comm.rank(), 3);
      const auto on_device = layer.engine().upload(x.data(), x.size() * sizeof(Bf16));
      const auto deadline = [] { return Deadline::after(60s); };
      comm.barrier(deadline());
      const Memory before(0);
      comm.barrier(deadline());
      std::minstd_rand same_on_all_ranks(5);
      for (int call = 0; call < 1000; ++call) {
        const auto rows = static_cast<std::int64_t>(1 + same_on_all_ranks() % 2000);
        layer->forward(static_cast<const Bf16*>(on_device.get()), rows, layer.depth());
      }
      layer->finish();
      comm.barrier(deadline());
      EXPECT_TRUE(Memory(0) == before) << "fused " << fused;
      comm.barrier(deadline());
    });
  }
}

TEST(CudaLayer, G01_ACallIsCapturedIntoAGraphAndReplays) {
  ROWBAND_NEEDS_GPUS(1);
  const int devices = std::min(device_count(), 2);
  with_exact_layers(2, devices, gpu_options(900), [&](Communicator& comm, GpuLayer& layer) {
    ASSERT_EQ(cudaSetDevice(comm.rank() % devices), cudaSuccess);
    const std::int64_t depth = layer.depth();
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    const auto memory = layer.engine().allocate(900 * depth * sizeof(Bf16));
    auto* x = static_cast<Bf16*>(memory.get());
    std::vector<cudaGraphExec_t> graphs;
    std::vector<Output> results;
    const std::vector<std::int64_t> shapes = {900, 64, 300};
    for (std::int64_t rows : shapes) {
      cudaGraph_t graph;
      ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      results.push_back(layer->forward(x, rows, depth, nullptr, nullptr, stream));
      ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
      ASSERT_EQ(cudaGraphInstantiate(&graphs.emplace_back(), graph, 0), cudaSuccess);
      cudaGraphDestroy(graph);
    }
    std::minstd_rand same_on_all_ranks(11);
    for (int call = 1; call <= 100; ++call) {
      const std::size_t chosen = same_on_all_ranks() % shapes.size();
      const std::int64_t rows = shapes[chosen];
      const auto host = exact_bf16(rows, depth, comm.rank(), call);
      layer.engine().copy(x, host.data(), host.size() * sizeof(Bf16), stream);
      Output y = results[chosen];
      if (same_on_all_ranks() % 3 == 0) {
        y = layer->forward(x, rows, depth, nullptr, nullptr, stream);  // beside the graphs
      } else {
        ASSERT_EQ(cudaGraphLaunch(graphs[chosen], stream), cudaSuccess);
      }
      std::vector<Bf16> got(static_cast<std::size_t>(rows * 264));
      layer.engine().download(got.data(), y.data, got.size() * sizeof(Bf16), stream);
      layer->finish(stream);
      ASSERT_EQ(exact_difference({got.data(), rows, 264}, rows, depth, 2, call), "");
    }
    for (auto graph : graphs) cudaGraphExecDestroy(graph);
    layer->close();
    cudaStreamDestroy(stream);
  });
}

TEST(CudaLayer, R11_HostMemoryAndMisalignedOutputAreRefusedAndTheLayerGoesOn) {
  ROWBAND_NEEDS_GPUS(1);
  for (std::int64_t rows : {10, 300}) {
    with_exact_layers(2, 1, gpu_options(512), [&](Communicator&, GpuLayer& layer) {
      const std::vector<Bf16> host(static_cast<std::size_t>(rows * layer.depth()));
      const auto memory = layer.engine().upload(host.data(), host.size() * sizeof(Bf16));
      const auto* x = static_cast<const Bf16*>(memory.get());
      const auto out = layer.engine().allocate(1 << 20);
      const auto refused = [&](const char* words, const Bf16* from, Bf16* to) {
        try {
          layer->forward(from, rows, layer.depth(), to);
          ADD_FAILURE() << "accepted: " << words;
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
          EXPECT_THAT(error.what(), HasSubstr(words));
        }
      };
      refused("host memory", host.data(), nullptr);
      refused("host memory", x, const_cast<Bf16*>(host.data()));
      refused("multiple of 16", x, static_cast<Bf16*>(out.get()) + 1);
      layer.forward_exact(rows, 5);
    });
  }
}

TEST(CudaLayer, DebugCheckLogsBothNumbers) {
  ROWBAND_NEEDS_GPUS(1);
  const LogCapture log;
  LayerOptions options = gpu_options(512);
  options.debug_check = true;
  with_exact_layers(2, 1, options,
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
  options.deadline = 500ms;
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
  const int devices = std::min(device_count(), 2);
  LayerOptions options = gpu_options(256);
  options.policy.enabled = false;  // the base path's all-reduce
  run_ranks(2, [&](Communicator& comm) {
    const auto engine = engine_for(comm.rank(), 2, devices);
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

TEST(CudaLayer, O01_NoRoomForTheWindowDeclinesOnEveryRank) {
  ROWBAND_NEEDS_GPUS(1);
  const LogCapture quiet;
  run_ranks(2, [](Communicator& comm) {
    LayerOptions options = gpu_options(512);
    auto faults = std::make_shared<FaultHooks>();
    if (comm.rank() == 1) faults->available_bytes = 4096;
    options.faults = faults;
    GpuLayer layer(comm, 1, to_slice(ExactWeight(264, 256)), {}, options);
    EXPECT_EQ(layer->verdict(400).decision, Decision::kUnavailable);
    EXPECT_THAT(layer->verdict(400).reason, HasSubstr("rank 1"));
    layer.forward_exact(400, 1);
  });
}

}  // namespace
}  // namespace rowband::cuda
