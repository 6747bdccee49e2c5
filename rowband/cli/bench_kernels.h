// `rowband bench --gemm` and `--quantizer`: this engine's parts alone, on one rank.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "rowband/cli/options.h"

namespace rowband::cli {

struct KernelFlags {
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> cols;
  std::vector<std::int64_t> depths;
  int repeats = 0;  // 0: 20, and fewer, but at least 5, of slow calls
  std::uint64_t seed = 0;
  EngineFlags engine;
};

struct KernelReport {
  std::string text;
  nlohmann::ordered_json json;
  bool ok = true;
};

// Against dequantising to fp32 and OpenBLAS's sgemm on the same cores. Throws Error(kUnavailable)
// in builds without OpenBLAS.
KernelReport bench_gemm(const KernelFlags& flags);
// Against a copy of as many bytes, by as many threads or on the same GPU.
KernelReport bench_quantizer(const KernelFlags& flags);

}  // namespace rowband::cli
