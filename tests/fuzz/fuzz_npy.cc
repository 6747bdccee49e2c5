// Any bytes either make a matrix of as many values as its shape says, or an Error.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "rowband/base/error.h"
#include "rowband/io/matrix_file.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  try {
    const rowband::Bf16Matrix matrix = rowband::parse_npy(input.data(), input.size(), "fuzz");
    require(matrix.rows >= 0 && matrix.cols >= 0);
    require(static_cast<std::uint64_t>(matrix.rows) * static_cast<std::uint64_t>(matrix.cols) ==
            matrix.values.size());
    require(matrix.values.size() <= size / 2);
  } catch (const rowband::Error& error) {
    require(error.code() == rowband::ErrorCode::kFormat);
  }
  return 0;
}
