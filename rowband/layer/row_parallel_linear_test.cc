// What forward() gives, on either path: accuracy, bits, bias, strides, lifetimes, checkpoints.
#include "rowband/layer/row_parallel_linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "rowband/io/make_checkpoint.h"
#include "rowband/io/test_support.h"
#include "rowband/layer/test_support.h"
#include "rowband/numerics/reference.h"

namespace rowband {
namespace {

// Both paths, and every way the fused one can travel.
std::vector<LayerOptions> all_paths(std::int64_t max_rows) {
  std::vector<LayerOptions> paths;
  LayerOptions base = layer_options(max_rows);
  base.policy.enabled = false;
  paths.push_back(base);
  for (const auto& mode : all_modes({})) {
    LayerOptions fused = layer_options(max_rows);
    fused.policy.min_rows = 0;
    fused.policy.min_fill = 0;
    fused.transport = mode.transport;
    fused.wire = mode.wire;
    fused.gather_scale = mode.gather_scale;
    paths.push_back(fused);
  }
  return paths;
}

std::string path_name(const LayerOptions& o) {
  if (!o.policy.enabled) return "base";
  return std::string(wire_name(o.wire)) + " " + std::string(transport_name(o.transport));
}

// Random inputs and weights of every rank, and what the layer should make of them.
struct RandomLayer {
  int world;
  std::int64_t rows, cols, depth;
  std::vector<std::vector<Bf16>> xs;  // by rank, [rows, depth]
  std::vector<Fp8Weight> weights;
  std::vector<Bf16> bias;

  RandomLayer(int w, std::int64_t m, std::int64_t n, std::int64_t k, std::uint64_t seed)
      : world(w), rows(m), cols(n), depth(k), bias(random_bf16(n, seed + 1000)) {
    for (int rank = 0; rank < w; ++rank) {
      xs.push_back(random_bf16(m * k, seed + rank));
      weights.push_back(to_slice(RandomWeight(n, k, seed + 100 + rank)));
    }
  }

  // float64, from the activations as they are quantised.
  std::vector<double> reference(bool with_bias) const {
    std::vector<std::vector<E4m3>> codes;
    std::vector<std::vector<float>> scales;
    std::vector<ActivationView> x;
    std::vector<WeightView> w;
    for (int rank = 0; rank < world; ++rank) {
      codes.emplace_back(rows * depth);
      scales.emplace_back(rows * depth / kScaleBlock);
      quantize_activations(xs[rank].data(), rows, depth, depth, ScaleFormat::kFp32,
                           codes.back().data(), depth, scales.back().data());
      x.push_back(
          {codes.back().data(), rows, depth, depth, scales.back().data(), depth / kScaleBlock, 1});
      w.push_back(weights[rank].view());
    }
    std::vector<std::int64_t> all(rows);
    for (std::int64_t row = 0; row < rows; ++row) all[row] = row;
    return reference_rows(x, w, with_bias ? bias.data() : nullptr, all, 2);
  }

  // All ranks' results.
  std::vector<std::vector<Bf16>> run(const LayerOptions& options, bool with_bias) const {
    std::vector<std::vector<Bf16>> all(world);
    run_ranks(world, [&](Communicator& comm) {
      const int rank = comm.rank();
      const auto layer = RowParallelLinear::create(comm, test_engine(rank), weights[rank],
                                                   with_bias ? bias : std::vector<Bf16>{}, options);
      const Output y = layer->forward(xs[rank].data(), rows, depth);
      all[rank].assign(y.data, y.data + y.rows * y.cols);
      EXPECT_EQ(
          layer->counters().of(options.policy.enabled ? Decision::kFuse : Decision::kDisabled), 1);
    });
    return all;
  }
};

TEST(RowParallelLinear, EveryPathIsAccurateAndEqualOnAllRanks) {
  for (int world : {1, 2, 3, 4}) {
    const RandomLayer group(world, 200, 264, 384, 17 * world);
    for (const bool with_bias : {false, true}) {
      const auto want = group.reference(with_bias);
      std::vector<Bf16> base;
      for (const LayerOptions& path : all_paths(256)) {
        const auto results = group.run(path, with_bias);
        for (const auto& result : results) ASSERT_EQ(result, results[0]) << path_name(path);
        const double limit = path.wire == Wire::kFp8 ? 3e-2 : 3e-3;
        EXPECT_LE(relative_l2(results[0], want), limit) << path_name(path) << " W=" << world;
        if (base.empty()) base = results[0];
        if (path.wire == Wire::kFp8) continue;
        EXPECT_LE(relative_l2(results[0], base), 3e-3) << path_name(path) << " W=" << world;
        if (world <= 2 && !with_bias) {
          EXPECT_EQ(results[0], base) << path_name(path);
        }
      }
    }
  }
}

TEST(RowParallelLinear, N01_BiasIsAddedOnceOnBothPaths) {
  // K = 4 split in two, padded with zeros to a block per rank; power-of-two scales are exact here.
  const float x[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  const float w[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  const float want[2][3] = {{130, 270, 410}, {170, 374, 576}};  // 578 reads 576 in bf16
  std::vector<Bf16> bias(8);
  for (int i = 0; i < 3; ++i) bias[i] = to_bf16(static_cast<float>(100 * (i + 1)));
  for (LayerOptions path : all_paths(2)) {
    if (path.wire == Wire::kFp8) continue;
    path.activation_scales = ScaleFormat::kUe8m0;
    run_ranks(2, [&](Communicator& comm) {
      std::vector<Bf16> xs(2 * 128);
      ConstantWeight ws(8, 128, 0);
      for (int k = 0; k < 2; ++k) {
        for (int m = 0; m < 2; ++m) xs[m * 128 + k] = to_bf16(x[m][comm.rank() * 2 + k]);
        for (int n = 0; n < 3; ++n) ws.codes[n * 128 + k] = to_e4m3(w[n][comm.rank() * 2 + k]);
      }
      const auto layer =
          RowParallelLinear::create(comm, test_engine(comm.rank()), to_slice(ws), bias, path);
      const Output y = layer->forward(xs.data(), 2, 128);
      for (int m = 0; m < 2; ++m) {
        for (int n = 0; n < 3; ++n) {
          EXPECT_EQ(to_float(y.data[m * 8 + n]), want[m][n]) << path_name(path);
        }
      }
    });
  }
}

TEST(RowParallelLinear, S08_StridedActivationsGiveTheBitsOfDenseOnes) {
  const RandomLayer group(2, 70, 136, 256, 5);
  for (const LayerOptions& path : all_paths(128)) {
    run_ranks(2, [&](Communicator& comm) {
      const int rank = comm.rank();
      const auto layer =
          RowParallelLinear::create(comm, test_engine(rank, 2), group.weights[rank], {}, path);
      const Output dense = layer->forward(group.xs[rank].data(), 70, 256);
      std::vector<Bf16> wide(70 * 301, to_bf16(1e30f));
      for (int row = 0; row < 70; ++row) {
        std::copy_n(group.xs[rank].data() + row * 256, 256, wide.data() + row * 301 + 11);
      }
      const Output strided = layer->forward(wide.data() + 11, 70, 301);
      ASSERT_EQ(std::memcmp(dense.data, strided.data, 70 * 136 * sizeof(Bf16)), 0);
    });
  }
}

TEST(RowParallelLinear, M05_M07_OutIsFilledExactlyAndReturned) {
  for (const LayerOptions& path : all_paths(512)) {
    run_ranks(2, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 72, 128, path);
      std::int64_t call = 0;
      for (std::int64_t rows : {300, 1, 33, 0, 65, 512, 513}) {
        std::vector<Bf16> out(520 * 72, Bf16{0x5A5A});
        const Output y = forward_exact(comm, *layer, rows, ++call, out.data());
        EXPECT_EQ(y.data, out.data());
        EXPECT_EQ(y.rows, rows);
        EXPECT_EQ(y.cols, 72);
        for (std::size_t i = rows * 72; i < out.size(); ++i) ASSERT_EQ(out[i].bits, 0x5A5A);
      }
    });
  }
}

TEST(RowParallelLinear, M01_NoRowsBetweenTwoCalls) {
  for (const LayerOptions& path : all_paths(256)) {
    run_ranks(3, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 64, 128, path);
      forward_exact(comm, *layer, 256, 1);
      for (int i = 0; i < 5; ++i) {
        const Output y = layer->forward(nullptr, 0, 0);
        EXPECT_EQ(y.rows, 0);
        EXPECT_EQ(y.cols, 64);
      }
      forward_exact(comm, *layer, 256, 2);
    });
  }
}

TEST(RowParallelLinear, R04_AResultStaysUntouchedThroughTheNextCallsOfEitherPath) {
  for (int slots : {1, 2, 3}) {
    for (const bool debug_check : {false, true}) {
      for (LayerOptions path : all_paths(200)) {
        path.slots = slots;
        path.debug_check = debug_check;
        path.policy.min_rows = 64;
        const LogCapture quiet;
        run_ranks(2, [&](Communicator& comm) {
          const auto layer = make_exact_layer(comm, 72, 128, path);
          // Fused, declined for few rows, declined for many, in every order.
          const std::int64_t shapes[] = {200, 10, 300, 100, 100, 201, 64, 7, 8, 9};
          std::vector<Output> kept;
          for (std::int64_t call = 0; call < 10; ++call) {
            kept.push_back(forward_exact(comm, *layer, shapes[call], call));
            for (std::int64_t old = std::max<std::int64_t>(0, call - slots + 1); old < call;
                 ++old) {
              EXPECT_EQ(exact_difference(kept[old], shapes[old], 128, 2, old), "")
                  << "result " << old << " after call " << call << ", slots=" << slots << ", "
                  << path_name(path) << (debug_check ? ", debug check" : "");
            }
          }
        });
      }
    }
  }
}

TEST(RowParallelLinear, L09_ClosesTwiceAndRefusesCallsAfterwards) {
  for (const LayerOptions& path : all_paths(128)) {
    run_ranks(2, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 64, 128, path);
      forward_exact(comm, *layer, 100, 1);
      layer->close();
      layer->close();
      const std::vector<Bf16> x(128);
      test::expect_error(ErrorCode::kInvalidArgument, {"closed"},
                         [&] { layer->forward(x.data(), 1, 128); });
    });
  }
}

TEST(RowParallelLinear, ATimelineShowsBothPaths) {
  for (const bool fused : {false, true}) {
    LayerOptions options = layer_options(256);
    options.policy.enabled = fused;
    Timeline timeline;
    run_ranks(2, [&](Communicator& comm) {
      const auto layer = make_exact_layer(comm, 64, 128, options);
      const auto x = exact_bf16(256, 128, comm.rank(), 1);
      layer->forward(x.data(), 256, 128, nullptr, &timeline);
      forward_exact(comm, *layer, 256, 2);  // unrecorded
    });
    const auto count = [&, events = timeline.events()](Activity activity, int rank) {
      return std::count_if(events.begin(), events.end(), [&](const TimelineEvent& e) {
        return e.activity == activity && e.rank == rank;
      });
    };
    for (int rank : {0, 1}) {
      EXPECT_GE(count(Activity::kGemm, rank), 1);
      EXPECT_EQ(count(Activity::kAllReduce, rank), fused ? 0 : 1);
      EXPECT_EQ(count(Activity::kGather, rank) > 0, fused);
    }
  }
}

// A checkpoint's slices on W ranks against the whole weight on one.
void expect_slices_sum_to_the_whole(const std::filesystem::path& file, std::int64_t total_depth,
                                    int world, std::int64_t rows) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  const Fp8Weight whole = read_weight_slice(checkpoint, "linear", 0, 1);
  const auto bias = read_bias(checkpoint, "linear", whole.cols);
  ASSERT_FALSE(bias.empty());
  const auto x = random_bf16(rows * total_depth, 77);
  std::vector<std::vector<Bf16>> results;  // unsharded, base, then every fused path
  std::mutex mutex;
  const auto run = [&](int ranks, const LayerOptions& path) {
    run_ranks(ranks, [&](Communicator& comm) {
      const Fp8Weight slice = read_weight_slice(checkpoint, "linear", comm.rank(), ranks);
      const auto layer =
          RowParallelLinear::create(comm, test_engine(comm.rank()), slice, bias, path);
      // The columns of this rank, in place.
      const Output y = layer->forward(x.data() + slice.depth_begin, rows, total_depth);
      const std::lock_guard lock(mutex);
      if (comm.rank() == 0) results.emplace_back(y.data, y.data + y.rows * y.cols);
    });
  };
  run(1, all_paths(rows)[0]);
  for (const LayerOptions& path : all_paths(rows)) {
    run(world, path);
    const double limit = path.wire == Wire::kFp8 ? 3e-2 : 4e-3;
    EXPECT_LE(relative_l2(results.back(), results[0]), limit) << path_name(path);
  }
}

TEST(RowParallelLinear, TheSlicesOfACheckpointSumToTheUnshardedLayer) {
  const test::TempDir dir;
  for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    make_checkpoint(dir / "model.safetensors", {.name = "linear",
                                                .cols = 200,
                                                .depth = 1536,
                                                .scale_format = format,
                                                .bias = true,
                                                .seed = 4});
    for (int world : {2, 3, 4}) {
      expect_slices_sum_to_the_whole(dir / "model.safetensors", 1536, world, 130);
    }
  }
}

TEST(RowParallelLinear, W04_ThreeRanksServe18432Columns) {
  const test::TempDir dir;
  make_checkpoint(dir / "model.safetensors",
                  {.name = "linear", .cols = 64, .depth = 18432, .bias = true, .seed = 9});
  expect_slices_sum_to_the_whole(dir / "model.safetensors", 18432, 3, 70);
  const Checkpoint checkpoint = Checkpoint::open(dir / "model.safetensors");
  EXPECT_EQ(read_weight_slice(checkpoint, "linear", 2, 3).depth, 48 * 128);
  test::expect_error(ErrorCode::kInvalidArgument, {"18432", "576", "128"},
                     [&] { read_weight_slice(checkpoint, "linear", 0, 32); });
}

}  // namespace
}  // namespace rowband
