// Any bytes either make a safetensors file whose every tensor can be read to its last byte, or an
// Error. Crashes, hangs, sanitizer reports and other exceptions are bugs.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

#include "rowband/base/error.h"
#include "rowband/io/safetensors.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Data is the tail of the input that the tensors share without gap or overlap.
void check_coverage(const rowband::SafetensorsFile& file, std::span<const std::byte> input) {
  std::size_t total = 0;
  std::uint64_t sum = 0;
  for (const rowband::TensorInfo& tensor : file.tensors()) {
    require(file.find(tensor.name) == &tensor);
    for (const std::int64_t dim : tensor.shape) require(dim >= 0);
    for (const std::byte byte : tensor.data) sum += std::to_integer<std::uint64_t>(byte);
    total += tensor.data.size();
  }
  std::uint64_t header_length = 0;
  std::memcpy(&header_length, input.data(), sizeof(header_length));
  require(total == input.size() - sizeof(header_length) - header_length);
  for (const std::byte byte : input.last(total)) sum -= std::to_integer<std::uint64_t>(byte);
  require(sum == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  try {
    check_coverage(*rowband::SafetensorsFile::from_bytes(input, "fuzz"), input);
  } catch (const rowband::Error& error) {
    require(error.code() == rowband::ErrorCode::kFormat);
  }
  return 0;
}
