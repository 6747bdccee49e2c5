// A checkpoint: one safetensors file, a sharded `*.index.json`, or a directory holding either. The
// index decides which file a tensor is read from; stray files beside it are ignored and mentioned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rowband/io/safetensors.h"
#include "rowband/numerics/operands.h"
#include "rowband/numerics/quantize.h"

namespace rowband {

class Checkpoint {
 public:
  // A path to a .safetensors file, an index (.json), or a directory. In a directory an index wins
  // over single files: model.safetensors.index.json, else the only *.safetensors.index.json, else
  // the only *.index.json, else the only *.safetensors. Missing shards: one Error(kIo) that lists
  // them all.
  static Checkpoint open(const std::filesystem::path& path);

  // The tensor, or Error(kFormat) naming the tensor, the file and near names. Throws as well when
  // the index sends it to a shard that does not hold it. Its data lives as long as this object or a
  // copy.
  TensorInfo tensor(std::string_view name) const;
  bool contains(std::string_view name) const;
  std::vector<std::string> names() const;
  // The file that the tensor is read from, for messages; the checkpoint's own path when there is no
  // such tensor.
  std::string file_of(std::string_view name) const;
  // Remarks a user should see ("ignored model.safetensors: the index does not list it").
  const std::vector<std::string>& notes() const { return notes_; }
  // "weight_block_size" of quantization_config in a config.json beside the checkpoint, when there
  // is one; {128, 128} (and a note) when not. Anything but 128x128 makes read_weight_slice throw.
  std::pair<std::int64_t, std::int64_t> weight_block_size() const { return block_size_; }

 private:
  struct State;
  Checkpoint() = default;
  void note_block_size(const std::filesystem::path& directory);

  std::shared_ptr<const State> state_;
  std::vector<std::string> notes_;
  std::pair<std::int64_t, std::int64_t> block_size_{128, 128};
};

// One rank's slice of a block-scale fp8 weight: columns [depth_begin, depth_begin + depth) of
// [cols, total_depth], copied dense, with its own scales only.
struct Fp8Weight {
  std::int64_t cols = 0;                          // N
  std::int64_t depth = 0;                         // K of this rank
  std::int64_t depth_begin = 0;                   // in the whole weight
  std::int64_t total_depth = 0;                   // K of the whole weight
  std::vector<E4m3> codes;                        // [cols, depth]
  std::vector<float> scales;                      // [scale_blocks(cols), depth / 128]
  ScaleFormat scale_format = ScaleFormat::kFp32;  // how the file stored them

  WeightView view() const;
};

// "" when `total_depth` can be cut into `world` slices of whole 128-blocks; otherwise a message
// with the slice, 128, and the legal world sizes.
std::string why_not_divisible(std::int64_t total_depth, int world);

// Reads `name` (with or without ".weight") for one rank: F8_E4M3 codes beside
// `<name>.weight_scale_inv` (F32 or BF16) or `<name>.scale` / `<name>.weight_scale_inv` (F8_E8M0).
// Checks shapes
// ([N, K] against [ceil(N/128), ceil(K/128)]), scales (finite and positive, naming the first bad
// index) and codes (NaN bytes: Error(kFormat) with count and first position). Reads only the
// slice's pages. Throws Error(kFormat) or Error(kInvalidArgument) with why_not_divisible.
Fp8Weight read_weight_slice(const Checkpoint& checkpoint, std::string_view name, int rank,
                            int world);

// The optional "<name>.bias" (BF16 or F32 [N]) rounded to bf16; empty when there is none.
std::vector<Bf16> read_bias(const Checkpoint& checkpoint, std::string_view name, std::int64_t cols);

// Quantises bf16/f32 matrices of `source` to block-scale fp8 and writes one safetensors file in
// DeepSeek's names. `names` empty: every 2-D BF16/F32 tensor that ends in ".weight"; other tensors
// are copied as they are.
void quantize_checkpoint(const Checkpoint& source, const std::vector<std::string>& names,
                         ScaleFormat format, const std::filesystem::path& destination);

}  // namespace rowband
