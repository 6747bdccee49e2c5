// cuBLASLt's block-scale GEMM against this engine's own. Skipped, with a message, where there is no
// GPU or no cuBLASLt.
#include "rowband/engines/cuda/cublas_gemm.h"

#include <gmock/gmock.h>

#include "rowband/base/error.h"
#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/engines/cuda/testing.h"
#include "rowband/numerics/reference.h"
#include "rowband/testing/operands.h"

namespace rowband::cuda {
namespace {

using testing::HasSubstr;

TEST(CublasLibrary, HasAVersionExactlyWhereItIsFound) {
  EXPECT_EQ(cublas_version().empty(), !why_no_cublas().empty());
}

std::shared_ptr<Engine> engine_with(const char* kernel) {
  return make_cuda_engine({.gemm_kernel = kernel});
}

// A multiplication: activations that the engine quantised itself, a weight whose rows of scales are
// padded to four, and the result, codes and result `shift` bytes behind a multiple of 256.
class Product {
 public:
  Product(Engine& engine, std::int64_t rows, std::int64_t cols, std::int64_t depth,
          std::size_t shift = 0)
      : engine_(engine),
        cols_(cols),
        depth_(depth),
        padded_((depth / 128 + 3) / 4 * 4),
        shift_(shift),
        w_codes_(engine.allocate(shift + static_cast<std::size_t>(cols * depth))),
        x_codes_(engine.allocate(shift + static_cast<std::size_t>(rows * depth))),
        x_scales_(engine.allocate(static_cast<std::size_t>(rows * depth / 128) * sizeof(float))),
        out_(engine.allocate(shift + static_cast<std::size_t>(rows * cols) * sizeof(Bf16))) {
    const auto x = random_bf16(rows * depth, 3);
    const RandomWeight w(cols, depth, 4);
    const std::int64_t blocks = depth / 128;
    std::vector<float> scales(static_cast<std::size_t>(scale_blocks(cols) * padded_));
    for (std::int64_t row = 0; row < scale_blocks(cols); ++row) {
      std::copy_n(w.scales.begin() + row * blocks, blocks, scales.begin() + row * padded_);
    }
    w_scales_ = engine.upload(scales.data(), scales.size() * sizeof(float));
    engine.copy(shifted<E4m3>(w_codes_), w.codes.data(), w.codes.size(), nullptr);
    const auto on_device = engine.upload(x.data(), x.size() * sizeof(Bf16));
    x_ = engine.quantize(static_cast<const Bf16*>(on_device.get()), rows, depth, depth,
                         ScaleFormat::kFp32, shifted<E4m3>(x_codes_),
                         static_cast<float*>(x_scales_.get()));
    engine.synchronize(nullptr);
  }

  void queue(const Bf16* bias, void* stream) const {
    engine_.gemm(x_,
                 {shifted<E4m3>(w_codes_), cols_, depth_, depth_,
                  static_cast<const float*>(w_scales_.get()), padded_, 1},
                 bias, shifted<Bf16>(out_), nullptr, stream);
  }

  void spoil(cudaStream_t stream) const {
    check(cudaMemsetAsync(shifted<Bf16>(out_), 0xFF,
                          static_cast<std::size_t>(x_.rows * cols_) * sizeof(Bf16), stream),
          "spoiling the result");
  }

  std::vector<Bf16> result(void* stream) const {
    std::vector<Bf16> host(static_cast<std::size_t>(x_.rows * cols_));
    engine_.download(host.data(), shifted<Bf16>(out_), host.size() * sizeof(Bf16), stream);
    return host;
  }

 private:
  template <typename T>
  T* shifted(const std::shared_ptr<void>& memory) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(memory.get()) + shift_);
  }

  Engine& engine_;
  const std::int64_t cols_, depth_, padded_;
  const std::size_t shift_;
  const std::shared_ptr<void> w_codes_, x_codes_, x_scales_, out_;
  std::shared_ptr<const void> w_scales_;
  ActivationView x_;
};

// The bias lies `bias_at` values behind a multiple of 256 bytes.
std::vector<Bf16> multiply(Engine& engine, std::int64_t rows, std::int64_t cols, std::int64_t depth,
                           const Bf16* bias, std::size_t bias_at = 0, std::size_t shift = 0) {
  const Product product(engine, rows, cols, depth, shift);
  std::vector<Bf16> values(bias_at + static_cast<std::size_t>(cols));
  if (bias != nullptr) std::copy_n(bias, cols, values.begin() + static_cast<int>(bias_at));
  const auto memory = engine.upload(values.data(), values.size() * sizeof(Bf16));
  product.queue(bias == nullptr ? nullptr : static_cast<const Bf16*>(memory.get()) + bias_at,
                nullptr);
  return product.result(nullptr);
}

TEST(CudaCublasGemm, AgreesWithTheOwnGemm) {
  ROWBAND_NEEDS_GPUS(1);
  if (!why_no_cublas().empty()) GTEST_SKIP() << why_no_cublas();
  const auto own = engine_with("wgmma"), peer = engine_with("cublaslt");
  EXPECT_THAT(peer->description(), HasSubstr("cublaslt"));
  const auto bias = random_bf16(7168, 9);
  for (std::int64_t rows : {1, 3, 64, 257, 1024}) {
    for (std::int64_t depth : {128, 2048}) {
      for (const Bf16* b : {static_cast<const Bf16*>(nullptr), bias.data()}) {
        EXPECT_LE(relative_l2(multiply(*own, rows, 1040, depth, b),
                              multiply(*peer, rows, 1040, depth, b)),
                  b == nullptr ? 1e-3 : 4e-3)  // with a bias it rounds twice
            << "M=" << rows << " K=" << depth;
      }
    }
  }
}

TEST(CudaCublasGemm, TakesMatricesAtAnyMultipleOf16) {
  ROWBAND_NEEDS_GPUS(1);
  if (!why_no_cublas().empty()) GTEST_SKIP() << why_no_cublas();
  const auto own = engine_with("wgmma"), peer = engine_with("cublaslt");
  for (std::int64_t rows : {1, 64, 257}) {
    const auto want = multiply(*own, rows, 1040, 2048, nullptr);
    for (const std::size_t shift : {0, 16, 144}) {  // in this order: the first plan is for 256
      EXPECT_LE(relative_l2(multiply(*peer, rows, 1040, 2048, nullptr, 0, shift), want), 1e-3)
          << "M=" << rows << ", " << shift << " bytes";
    }
  }
}

// Of one engine, whose calls share a workspace; with so deep a K they are likely to use it.
TEST(CudaCublasGemm, CallsOnTwoStreamsAndInAGraphGiveTheSameBits) {
  ROWBAND_NEEDS_GPUS(1);
  if (!why_no_cublas().empty()) GTEST_SKIP() << why_no_cublas();
  const auto engine = engine_with("cublaslt");
  const TestStream streams[] = {TestStream(), TestStream()};
  std::vector<std::unique_ptr<Product>> products;
  std::vector<std::vector<Bf16>> want;
  for (const std::int64_t rows : {8, 64}) {
    const auto& product =
        products.emplace_back(std::make_unique<Product>(*engine, rows, 512, 16384));
    product->queue(nullptr, nullptr);
    want.push_back(product->result(nullptr));
  }
  for (int i = 0; i < 2; ++i) products[i]->spoil(streams[i].get());
  for (int call = 0; call < 100; ++call) {
    for (int i = 0; i < 2; ++i) products[i]->queue(nullptr, streams[i].get());
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(products[i]->result(streams[i].get()), want[i]) << i;

  const cudaStream_t stream = streams[0].get();
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  for (const auto& product : products) product->queue(nullptr, stream);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "ending a capture");
  cudaGraphExec_t replayed = nullptr;
  check(cudaGraphInstantiate(&replayed, graph, 0), "instantiating the graph");
  for (int replay = 0; replay < 3; ++replay) {
    for (const auto& product : products) product->spoil(stream);
    check(cudaGraphLaunch(replayed, stream), "launching the graph");
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(products[i]->result(stream), want[i]) << i;
  cudaGraphExecDestroy(replayed);
  cudaGraphDestroy(graph);
}

TEST(CudaCublasGemm, TakesABiasWhereverTheOwnGemmTakesIt) {
  ROWBAND_NEEDS_GPUS(1);
  if (!why_no_cublas().empty()) GTEST_SKIP() << why_no_cublas();
  const auto bias = random_bf16(264, 9);
  for (const char* kernel : {"wgmma", "cublaslt"}) {
    const auto engine = engine_with(kernel);
    const auto want = multiply(*engine, 65, 264, 512, bias.data());
    for (const std::size_t at : {2, 4, 6, 8}) {
      EXPECT_EQ(multiply(*engine, 65, 264, 512, bias.data(), at), want) << kernel << " " << at;
    }
  }
}

TEST(CudaAddBias, TakesABiasAtAnyEvenAddressAndRefusesOtherMemoryInWords) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_with("");
  constexpr std::int64_t kRows = 3, kCols = 264;
  const std::vector<Bf16> zeros(kRows * kCols + 8);
  const auto bias = random_bf16(kCols + 8, 9);
  const auto on_device = engine->upload(bias.data(), bias.size() * sizeof(Bf16));
  const auto memory = engine->allocate(zeros.size() * sizeof(Bf16));
  auto* const out = static_cast<Bf16*>(memory.get());
  const auto* const first = static_cast<const Bf16*>(on_device.get());
  for (int at = 0; at <= 8; ++at) {
    engine->copy(out, zeros.data(), zeros.size() * sizeof(Bf16), nullptr);
    engine->add_bias(out, kRows, kCols, first + at);
    std::vector<Bf16> sums(kRows * kCols);
    engine->download(sums.data(), out, sums.size() * sizeof(Bf16), nullptr);
    for (std::int64_t i = 0; i < kRows * kCols; ++i) {
      ASSERT_EQ(to_float(sums[i]), to_float(bias[at + i % kCols]))
          << "at " << at << ", value " << i;
    }
  }
  const auto refusal = [&](Bf16* to, std::int64_t cols, const Bf16* from) -> std::string {
    try {
      engine->add_bias(to, kRows, cols, from);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
  };
  EXPECT_THAT(refusal(out + 4, kCols, first), HasSubstr("multiple of 16"));
  EXPECT_THAT(refusal(out, 12, first), HasSubstr("N=12"));
  const auto* const odd = reinterpret_cast<const std::byte*>(first) + 1;
  EXPECT_THAT(refusal(out, kCols, reinterpret_cast<const Bf16*>(odd)), HasSubstr("multiple of 2"));
  engine->synchronize(nullptr);  // the GPU is none the worse
}

TEST(CudaCublasGemm, SaysWhatItDoesNotServe) {
  ROWBAND_NEEDS_GPUS(1);
  if (!why_no_cublas().empty()) GTEST_SKIP() << why_no_cublas();
  const auto engine = engine_with("");
  CublasGemm gemm(engine->device(), engine->allocate(CublasGemm::kWorkspaceBytes));
  const auto memory = engine->allocate(1 << 20);
  const auto* codes = static_cast<const E4m3*>(memory.get());
  const auto* scales = static_cast<const float*>(memory.get());
  const WeightView w{codes, 256, 512, 512, scales, 4, 1};
  EXPECT_EQ(gemm.why_not({codes, 128, 512, 512, scales, 1, 128}, w), "");
  EXPECT_THAT(gemm.why_not({codes, 128, 512, 512, scales, 4, 1}, w), HasSubstr("[K/128][M]"));
  EXPECT_THAT(
      gemm.why_not({codes, 128, 512, 512, scales, 1, 128}, {codes, 256, 512, 512, scales, 5, 1}),
      HasSubstr("rows of 4"));
  EXPECT_THAT(gemm.why_not({codes, 0, 512, 512, scales, 1, 0}, w), HasSubstr("M=0"));
}

TEST(CudaCublasGemm, C01_AnUnknownKernelListsTheLegalOnes) {
  ROWBAND_NEEDS_GPUS(1);
  try {
    engine_with("avx512_bf16");
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("'wgmma', 'cublaslt'"));
  }
}

}  // namespace
}  // namespace rowband::cuda
