// What `rowband run` and `rowband demo` work on: a weight from a checkpoint or a random one,
// activations from a file or random ones. Opened and checked once per process, before any rank
// allocates.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rowband/io/checkpoint.h"
#include "rowband/io/matrix_file.h"

namespace rowband::cli {

struct InputFlags {
  std::string checkpoint;
  std::string tensor;
  std::string input;
  std::string input_tensor;
  std::optional<std::int64_t> rows;
  std::optional<std::int64_t> cols;
  std::optional<std::int64_t> depth;
  std::uint64_t seed = 0;

  void add_to(CLI::App& command);
};

// One rank's columns of the activations: [rows, depth] with `row_stride` elements between rows.
struct ActivationSlice {
  std::vector<Bf16> own;  // empty when the slice lies in the input file's matrix
  const Bf16* data = nullptr;
  std::int64_t row_stride = 0;
};

class LayerInput {
 public:
  static constexpr std::int64_t kDefaultRows = 1024, kDefaultCols = 7168, kDefaultDepth = 2048;

  // Throws Error(kInvalidArgument), (kFormat), (kIo).
  LayerInput(const InputFlags& flags, int world);

  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::int64_t total_depth() const { return total_depth_; }
  std::int64_t depth() const { return total_depth_ / world_; }  // of one rank
  std::string weight_source() const;
  std::string activation_source() const;
  std::vector<std::string> notes() const;  // of the checkpoint, which a user should see

  Fp8Weight weight(int rank) const;
  std::vector<Bf16> bias() const;
  // Valid while this object lives.
  ActivationSlice activations(int rank) const;

 private:
  void open_checkpoint();
  void read_activations();

  const InputFlags flags_;
  const int world_;
  std::optional<Checkpoint> checkpoint_;
  std::string tensor_;
  std::optional<Bf16Matrix> matrix_;
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::int64_t total_depth_ = 0;
};

}  // namespace rowband::cli
