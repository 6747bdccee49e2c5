// The kernel for CPUs with AVX-512 BF16 and VBMI (Zen 4 and later, Sapphire Rapids and later).
//
// An e4m3 code is exactly a bf16 value, so both operands are widened by table lookup into L1-sized
// panels and multiplied by VDPBF16PS, which adds two products per lane. Highway 1.0.3, the one in
// Debian 12, has no target with this instruction; hence the intrinsics.
#include "rowband/engines/host/tile_gemm.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "rowband/numerics/quantize.h"

#define ROWBAND_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512bf16,fma")))

namespace rowband::host {
namespace {

constexpr int kPairs = kScaleBlock / 2;  // VDPBF16PS takes k two by two
constexpr int kMicroRows = 8;            // 8 x 2 registers of sums, enough to hide the latency

struct alignas(64) Tables {
  // The two bytes of the bf16 that equals a positive code.
  std::array<std::uint8_t, 128> low, high;
  // A register of 16 columns x 4 codes, as its low and high bytes, becomes two of 16 columns x 1
  // pair.
  std::array<std::uint8_t, 64> first_pair, second_pair;
};

Tables make_tables() {
  Tables t;
  for (int code = 0; code < 128; ++code) {
    const std::uint16_t bits = to_bf16(to_float(E4m3{static_cast<std::uint8_t>(code)})).bits;
    t.low[code] = static_cast<std::uint8_t>(bits & 0xFF);
    t.high[code] = static_cast<std::uint8_t>(bits >> 8);
  }
  for (int i = 0; i < 64; ++i) {
    const int lane = i / 4 * 4, k = i % 4 / 2, from_high = i % 2 * 64;
    t.first_pair[i] = static_cast<std::uint8_t>(from_high + lane + k);
    t.second_pair[i] = static_cast<std::uint8_t>(from_high + lane + 2 + k);
  }
  return t;
}

const Tables kTables = make_tables();

// Widens 64 codes at a time.
class Widener {
 public:
  ROWBAND_TARGET Widener()
      : low0_(_mm512_load_si512(kTables.low.data())),
        low1_(_mm512_load_si512(kTables.low.data() + 64)),
        high0_(_mm512_load_si512(kTables.high.data())),
        high1_(_mm512_load_si512(kTables.high.data() + 64)),
        sign_(_mm512_set1_epi8(static_cast<char>(0x80))) {}

  ROWBAND_TARGET void operator()(__m512i codes, __m512i& low, __m512i& high) const {
    low = _mm512_permutex2var_epi8(low0_, codes, low1_);
    high = _mm512_permutex2var_epi8(high0_, codes, high1_);
    constexpr int kFirstOrBoth = 0xF8;  // high | (codes & sign)
    high = _mm512_ternarylogic_epi32(high, codes, sign_, kFirstOrBoth);
  }

 private:
  __m512i low0_, low1_, high0_, high1_, sign_;
};

// [rows][128] bf16, k in order.
ROWBAND_TARGET void widen_activations(const E4m3* codes, std::int64_t stride, std::int64_t rows,
                                      std::uint16_t* out) {
  const Widener widen;
  // Unpacking works within 128-bit lanes; this order of quadwords makes its result come out in
  // order.
  const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (int k = 0; k < kScaleBlock; k += 64) {
      __m512i low, high;
      widen(_mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes + r * stride + k)), low, high);
      _mm512_store_si512(out + r * kScaleBlock + k, _mm512_unpacklo_epi8(low, high));
      _mm512_store_si512(out + r * kScaleBlock + k + 32, _mm512_unpackhi_epi8(low, high));
    }
  }
}

// 16 x 16 transposition of 32-bit elements.
ROWBAND_TARGET inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// [64 pairs][32 columns][2] bf16; columns past `cols` are zero.
ROWBAND_TARGET void widen_weights(const E4m3* codes, std::int64_t stride, std::int64_t cols,
                                  std::uint16_t* out) {
  const Widener widen;
  const __m512i first = _mm512_load_si512(kTables.first_pair.data());
  const __m512i second = _mm512_load_si512(kTables.second_pair.data());
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < kScaleBlock; k += 64) {
      __m512i r[16];
      for (int i = 0; i < 16; ++i) {
        const std::int64_t col = half * 16 + i;
        r[i] = col < cols ? _mm512_loadu_si512(codes + col * stride + k) : _mm512_setzero_si512();
      }
      transpose(r);
      for (int i = 0; i < 16; ++i) {  // r[i]: 16 columns x codes k + 4i .. k + 4i + 3
        __m512i low, high;
        widen(r[i], low, high);
        std::uint16_t* pair = out + (k / 2 + 2 * i) * kPanelCols * 2 + half * 32;
        _mm512_store_si512(pair, _mm512_permutex2var_epi8(low, first, high));
        _mm512_store_si512(pair + kPanelCols * 2, _mm512_permutex2var_epi8(low, second, high));
      }
    }
  }
}

// sums[rows][32] += scale * (activations[rows][128] * weights[128][32])
template <int rows>
ROWBAND_TARGET inline void multiply_block(const std::uint16_t* activations,
                                          const std::uint16_t* weights, const float* scales,
                                          float* sums) {
  __m512 block[rows][2];
  for (int i = 0; i < rows; ++i) block[i][0] = block[i][1] = _mm512_setzero_ps();
#pragma GCC unroll 2
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto w0 = (__m512bh)_mm512_load_si512(weights + pair * 64);
    const auto w1 = (__m512bh)_mm512_load_si512(weights + pair * 64 + 32);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      int two;
      std::memcpy(&two, activations + i * kScaleBlock + 2 * pair, sizeof two);
      const auto x = (__m512bh)_mm512_set1_epi32(two);
      block[i][0] = _mm512_dpbf16_ps(block[i][0], x, w0);
      block[i][1] = _mm512_dpbf16_ps(block[i][1], x, w1);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < rows; ++i) {
    const __m512 scale = _mm512_set1_ps(scales[i]);
    for (int half = 0; half < 2; ++half) {
      float* at = sums + i * kPanelCols + half * 16;
      _mm512_store_ps(at, _mm512_fmadd_ps(block[i][half], scale, _mm512_load_ps(at)));
    }
  }
}

using BlockFunction = void (*)(const std::uint16_t*, const std::uint16_t*, const float*, float*);
constexpr BlockFunction kShortBlocks[kMicroRows] = {
    nullptr,           multiply_block<1>, multiply_block<2>, multiply_block<3>,
    multiply_block<4>, multiply_block<5>, multiply_block<6>, multiply_block<7>};

ROWBAND_TARGET void run(const ActivationView& x, const WeightView& w, Range rows, Range cols,
                        TileScratch& scratch) {
  auto* activations = static_cast<std::uint16_t*>(scratch.activations());
  auto* weights = static_cast<std::uint16_t*>(scratch.weights());
  const std::int64_t height = rows.size(), panels = (cols.size() + kPanelCols - 1) / kPanelCols;
  std::memset(scratch.sums(), 0,
              static_cast<std::size_t>(panels * height * kPanelCols) * sizeof(float));

  for (std::int64_t block = 0; block < x.depth / kScaleBlock; ++block) {
    const std::int64_t k = block * kScaleBlock;
    float row_scales[kMaxTileRows];
    gather_row_scales(x, rows, block, row_scales);
    widen_activations(x.codes + rows.begin * x.row_stride + k, x.row_stride, height, activations);
    for (std::int64_t panel = 0; panel < panels; ++panel) {
      const std::int64_t col = cols.begin + panel * kPanelCols;
      widen_weights(w.codes + col * w.row_stride + k, w.row_stride,
                    std::min(kPanelCols, cols.end - col), weights);
      const float panel_scale = col_scale(w, col, block);
      float scales[kMaxTileRows];
      for (std::int64_t r = 0; r < height; ++r) scales[r] = panel_scale * row_scales[r];
      float* sums = scratch.sums() + panel * height * kPanelCols;
      std::int64_t r = 0;
      for (; r + kMicroRows <= height; r += kMicroRows) {
        multiply_block<kMicroRows>(activations + r * kScaleBlock, weights, scales + r,
                                   sums + r * kPanelCols);
      }
      if (r < height) {
        kShortBlocks[height - r](activations + r * kScaleBlock, weights, scales + r,
                                 sums + r * kPanelCols);
      }
    }
  }
}

}  // namespace

TileGemmFunction avx512_bf16_tile_gemm() {
  const bool runs = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
  return runs ? run : nullptr;
}

}  // namespace rowband::host

#else

namespace rowband::host {
TileGemmFunction avx512_bf16_tile_gemm() { return nullptr; }
}  // namespace rowband::host

#endif
