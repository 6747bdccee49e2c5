// Activations in and results out: a 2-D matrix in a .npy or .safetensors file, told by its ending.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "rowband/numerics/types.h"

namespace rowband {

struct Bf16Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<Bf16> values;  // dense, row-major
};

// .npy (format 1.0-3.0; <f4, or <V2 as ml_dtypes' bfloat16 is saved; C or Fortran order) or
// .safetensors (F32 or BF16; `tensor` names it, "" takes the only one). 1-D is one row; leading
// dimensions are folded into rows. F32 is rounded to bf16. Throws Error(kFormat) naming file, dtype
// and shape; Error(kIo).
Bf16Matrix read_matrix(const std::filesystem::path& path, const std::string& tensor);

// The same from bytes in memory, for .npy (what the fuzzer drives).
Bf16Matrix parse_npy(const std::byte* bytes, std::size_t size, const std::string& name);

// .npy gets <f4 (every bf16 exactly), .safetensors gets BF16 under `tensor`. Written beside and
// renamed.
void write_matrix(const std::filesystem::path& path, const Bf16Matrix& matrix,
                  const std::string& tensor);

}  // namespace rowband
