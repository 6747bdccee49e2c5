#include <gtest/gtest.h>

#include <cstring>

#include "rowband/engines/cuda/testing.h"
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

TEST(CudaQuantize, S08_RowsWiderThanTheDepthAndUnaligned) {
  ROWBAND_NEEDS_GPUS(1);
  expect_equal_to_the_scalar_quantiser(random_bf16(33 * 640, 8), 512, 640);
  expect_equal_to_the_scalar_quantiser(random_bf16(33 * 515, 9), 512, 515);
}

}  // namespace
}  // namespace rowband::cuda
