#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "rowband/engines/cuda/exact_calls.h"
#include "rowband/numerics/quantize.h"
#include "rowband/testing/operands.h"

namespace rowband::cuda {
namespace {

void expect_equal_to_the_scalar_quantiser(const std::vector<Bf16>& x, std::int64_t depth,
                                          std::int64_t stride) {
  const auto engine = engine_for(0, 1, 1);
  const auto rows = static_cast<std::int64_t>(x.size()) / stride;
  const auto elements = static_cast<std::size_t>(rows * depth);
  for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    std::vector<E4m3> want(elements), got(elements);
    std::vector<float> want_scales(elements / 128), got_scales(elements / 128);
    quantize_activations(x.data(), rows, depth, stride, format, want.data(), depth,
                         want_scales.data());
    const auto on_device = engine->upload(x.data(), x.size() * sizeof(Bf16));
    const auto codes = std::const_pointer_cast<void>(engine->upload(got.data(), elements));
    const auto scales =
        std::const_pointer_cast<void>(engine->upload(got_scales.data(), elements / 128 * 4));
    const ActivationView view =
        engine->quantize(static_cast<const Bf16*>(on_device.get()), rows, depth, stride, format,
                         static_cast<E4m3*>(codes.get()), static_cast<float*>(scales.get()));
    engine->download(got.data(), codes.get(), elements, nullptr);
    engine->download(got_scales.data(), scales.get(), elements / 128 * 4, nullptr);
    const std::int64_t blocks = depth / 128;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        const float scale = got_scales[static_cast<std::size_t>(row * view.scale_row_stride +
                                                                block * view.scale_block_stride)];
        ASSERT_EQ(scale, want_scales[static_cast<std::size_t>(row * blocks + block)]) << row;
      }
    }
    for (std::size_t i = 0; i < elements; ++i) ASSERT_EQ(got[i].bits, want[i].bits) << i;
  }
}

TEST(CudaQuantize, Q01_Q03_Q05_Q06_EqualsTheScalarQuantiserOverEveryBf16) {
  ROWBAND_NEEDS_GPUS(1);
  std::vector<Bf16> all(65536), scrambled(65536);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].bits = static_cast<std::uint16_t>(i);
    scrambled[i].bits = static_cast<std::uint16_t>(i * 40503u);
  }
  expect_equal_to_the_scalar_quantiser(all, 512, 512);
  expect_equal_to_the_scalar_quantiser(scrambled, 512, 512);
  expect_equal_to_the_scalar_quantiser(random_bf16(130 * 1024, 7), 1024, 1024);
  expect_equal_to_the_scalar_quantiser(std::vector<Bf16>(1024), 256, 256);
}

// What quantize_device.cuh's Division rests on, by the CPU's arithmetic: mantissas are enough,
// since powers of two change nothing. Every 61st of the divisors' here; all of them take minutes.
TEST(CudaQuantize, Q03_TheReciprocalAndOneCorrectionGiveEveryQuotient) {
  for (std::uint32_t mantissa = 0; mantissa < 1u << 23; ++mantissa) {
    const auto divisor = std::bit_cast<float>(0x3F800000u | mantissa);
    const float reciprocal = 1.0f / divisor;
    for (std::uint32_t bits = 0; bits < 128; ++bits) {
      const auto x = std::bit_cast<float>(0x3F800000u | bits << 16);
      const float near = x * reciprocal;
      const float quotient = std::fma(std::fma(-near, divisor, x), reciprocal, near);
      ASSERT_EQ(quotient, x / divisor) << x << " / " << divisor;
    }
  }
}

// The fp8 wire's short cut: every bf16 in blocks of ordinary largest magnitudes, zeros of both
// signs included.
TEST(CudaQuantize, Q03_OrdinaryBlocksHaveTheCodesOfAnyOther) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  const DeviceFindings findings(*engine);
  check_ordinary_codes(0.0f, findings.get(), nullptr);
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(0x1p-40f) >> 16;
       bits <= std::bit_cast<std::uint32_t>(0x1p100f) >> 16; bits += 7) {
    check_ordinary_codes(std::bit_cast<float>(bits << 16), findings.get(), nullptr);
  }
  check(cudaDeviceSynchronize(), "comparing codes");
  findings.expect_none("ordinary codes", nullptr);
}

TEST(CudaQuantize, S10_MisalignedCodesAndNoDepthAreRefused) {
  ROWBAND_NEEDS_GPUS(1);
  const auto engine = engine_for(0, 1, 1);
  const auto memory = engine->allocate(1 << 16);
  auto* bytes = static_cast<std::byte*>(memory.get());
  const auto quantize = [&](std::int64_t depth, std::ptrdiff_t codes_at) {
    engine->quantize(reinterpret_cast<Bf16*>(bytes), 3, depth, depth, ScaleFormat::kFp32,
                     reinterpret_cast<E4m3*>(bytes + 8192 + codes_at),
                     reinterpret_cast<float*>(bytes + 16384));
  };
  for (std::int64_t depth : {-128, 0, 64}) EXPECT_THROW(quantize(depth, 0), Error) << depth;
  for (std::ptrdiff_t at : {1, 8}) EXPECT_THROW(quantize(256, at), Error) << at;
  EXPECT_NO_THROW(quantize(256, 16));
  check(cudaDeviceSynchronize(), "quantising");
}

struct Quantised {
  std::vector<E4m3> codes;
  std::vector<float> scales;
  double value(std::size_t i) const {
    return static_cast<double>(to_float(codes[i])) * static_cast<double>(scales[i / 128]);
  }
};

// x: rows of `depth`, dense. Scales by row, then by block.
Quantised quantised(const std::vector<Bf16>& x, std::int64_t depth, ScaleFormat format) {
  const auto engine = engine_for(0, 1, 1);
  const auto elements = static_cast<std::int64_t>(x.size());
  const std::int64_t rows = elements / depth, blocks = depth / 128;
  const auto on_device = engine->upload(x.data(), x.size() * sizeof(Bf16));
  const auto codes = device_array<E4m3>(*engine, elements);
  const auto scales = device_array<float>(*engine, rows * blocks);
  const ActivationView view = engine->quantize(static_cast<const Bf16*>(on_device.get()), rows,
                                               depth, depth, format, codes.get(), scales.get());
  Quantised result{std::vector<E4m3>(x.size()), {}};
  std::vector<float> as_laid(static_cast<std::size_t>(rows * blocks));
  engine->download(result.codes.data(), codes.get(), x.size(), nullptr);
  engine->download(as_laid.data(), scales.get(), as_laid.size() * sizeof(float), nullptr);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      result.scales.push_back(as_laid[static_cast<std::size_t>(row * view.scale_row_stride +
                                                               block * view.scale_block_stride)]);
    }
  }
  return result;
}

TEST(CudaQuantize, Q01_BlocksOfZerosStayZeros) {
  ROWBAND_NEEDS_GPUS(1);
  for (bool all : {false, true}) {
    std::vector<Bf16> x = random_bf16(4 * 256, 11);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (all || (i >= 2 * 256 + 128 && i < 3 * 256)) x[i] = {};
    }
    for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
      const Quantised q = quantised(x, 256, format);
      for (float scale : q.scales) {
        EXPECT_TRUE(std::isfinite(scale));
        EXPECT_GT(scale, 0.0f);
      }
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_NE(q.codes[i].bits & 0x7F, 0x7F) << i;
        if (x[i].bits == 0) {
          EXPECT_EQ(q.codes[i].bits, 0) << i;
        }
      }
    }
  }
}

TEST(CudaQuantize, Q03_TinyBlocksOverflowNothing) {
  ROWBAND_NEEDS_GPUS(1);
  std::vector<Bf16> x = random_bf16(5 * 128, 12);
  const float largest[] = {6.3e-38f, 1.31e-36f, 1.32e-36f, 0x1p-133f};
  for (int block = 0; block < 4; ++block) {
    for (int i = 0; i < 128; ++i) {
      x[block * 128 + i] =
          to_bf16(i == 7 ? largest[block] : largest[block] / static_cast<float>(2 + i));
    }
  }
  for (ScaleFormat format : {ScaleFormat::kFp32, ScaleFormat::kUe8m0}) {
    const Quantised q = quantised(x, 5 * 128, format);
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_NE(q.codes[i].bits & 0x7F, 0x7F) << i;
      EXPECT_TRUE(std::isfinite(q.scales[i / 128]));
      if (i < 4 * 128) {
        EXPECT_LE(std::abs(q.value(i) - static_cast<double>(to_float(x[i]))),
                  static_cast<double>(largest[i / 128]));
      }
    }
    const Quantised alone = quantised(std::vector<Bf16>(x.begin() + 4 * 128, x.end()), 128, format);
    EXPECT_EQ(alone.scales[0], q.scales[4]);
    EXPECT_EQ(alone.codes, std::vector<E4m3>(q.codes.begin() + 4 * 128, q.codes.end()));
  }
}

TEST(CudaQuantize, Q05_PowersOfTwoAreRoundedUpByTheirBits) {
  ROWBAND_NEEDS_GPUS(1);
  // The largest magnitude of each block: 448 times 2^-20, the next bf16 above, the one below 448
  // times 2^-7, and 4.
  const float largest[] = {448 * 0x1p-20f, 450 * 0x1p-20f, 446 * 0x1p-7f, 4.0f};
  const float scales[] = {0x1p-20f, 0x1p-19f, 0x1p-7f, 0x1p-6f};  // bytes 107, 108, 120, 121
  std::vector<Bf16> x(4 * 128);
  for (int block = 0; block < 4; ++block) {
    ASSERT_EQ(to_float(to_bf16(largest[block])), largest[block]);
    x[block * 128 + 3] = to_bf16(largest[block]);
  }
  EXPECT_EQ(quantised(x, 128, ScaleFormat::kUe8m0).scales,
            std::vector<float>(std::begin(scales), std::end(scales)));
}

TEST(CudaQuantize, Q06_CodesAreMadeWithTheRoundedScale) {
  ROWBAND_NEEDS_GPUS(1);
  std::vector<Bf16> x(128);
  for (int i = 0; i < 4; ++i) x[i] = to_bf16(static_cast<float>(i + 1));
  const Quantised q = quantised(x, 128, ScaleFormat::kUe8m0);
  EXPECT_EQ(q.scales[0], 0x1p-6f);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(q.value(i), i + 1);
}

TEST(CudaQuantize, S08_RowsWiderThanTheDepthAndUnaligned) {
  ROWBAND_NEEDS_GPUS(1);
  expect_equal_to_the_scalar_quantiser(random_bf16(33 * 640, 8), 512, 640);
  expect_equal_to_the_scalar_quantiser(random_bf16(33 * 515, 9), 512, 515);
}

}  // namespace
}  // namespace rowband::cuda
