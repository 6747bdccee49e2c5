// The dtypes that safetensors defines, by the names that files use.
#pragma once

#include <cstdint>
#include <string_view>

#include "rowband/io/safetensors.h"

namespace rowband {

struct DTypeTraits {
  std::string_view name;  // as in a file: "F8_E4M3"
  DType dtype;            // kOther for those that this library only carries
  std::int64_t bits;      // per element; below 8 for packed formats
};

// Null for a name that the format does not define.
const DTypeTraits* find_dtype(std::string_view name);

// The traits of a dtype other than kOther.
const DTypeTraits& dtype_traits(DType dtype);

}  // namespace rowband
