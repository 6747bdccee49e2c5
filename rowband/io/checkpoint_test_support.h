// Small checkpoints for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "rowband/io/checkpoint.h"
#include "rowband/io/safetensors.h"
#include "rowband/io/test_support.h"

namespace rowband::test {

// Owns the bytes of the tensors that it will write.
class CheckpointFile {
 public:
  template <typename T>
  CheckpointFile& add(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                      const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    tensors_.push_back({name, dtype, std::move(shape), {bytes.begin(), bytes.end()}});
    return *this;
  }

  // An fp8 weight whose codes are all `code`, without scales.
  CheckpointFile& add_codes(const std::string& name, std::int64_t cols, std::int64_t depth,
                            std::uint8_t code = 0x38) {
    return add(name, DType::kF8E4m3, {cols, depth},
               std::vector<std::uint8_t>(static_cast<std::size_t>(cols * depth), code));
  }

  // fp32 scales of this shape, scale i being `first + i`.
  CheckpointFile& add_scales(const std::string& name, std::int64_t rows, std::int64_t cols,
                             float first = 1.0f) {
    std::vector<float> scales;
    for (std::int64_t i = 0; i < rows * cols; ++i) scales.push_back(first + static_cast<float>(i));
    return add(name, DType::kF32, {rows, cols}, scales);
  }

  void write(const std::filesystem::path& path) const {
    std::vector<TensorToWrite> tensors;
    for (const Tensor& t : tensors_) tensors.push_back({t.name, t.dtype, t.shape, t.bytes});
    write_safetensors(path, tensors);
  }

 private:
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::vector<Tensor> tensors_;
};

}  // namespace rowband::test
