#include "rowband/io/safetensors_dtype.h"

#include <algorithm>
#include <array>

#include "rowband/base/fail.h"

namespace rowband {
namespace {

constexpr std::array kDTypes{
    DTypeTraits{"F32", DType::kF32, 32},
    DTypeTraits{"BF16", DType::kBf16, 16},
    DTypeTraits{"F8_E4M3", DType::kF8E4m3, 8},
    DTypeTraits{"F8_E8M0", DType::kF8E8m0, 8},
    DTypeTraits{"BOOL", DType::kOther, 8},
    DTypeTraits{"F4", DType::kOther, 4},
    DTypeTraits{"F6_E2M3", DType::kOther, 6},
    DTypeTraits{"F6_E3M2", DType::kOther, 6},
    DTypeTraits{"U8", DType::kOther, 8},
    DTypeTraits{"I8", DType::kOther, 8},
    DTypeTraits{"F8_E5M2", DType::kOther, 8},
    // Same bit patterns as F8_E4M3 with half the value each, and 0x80 is NaN: never to be mixed up.
    DTypeTraits{"F8_E4M3FNUZ", DType::kOther, 8},
    DTypeTraits{"F8_E5M2FNUZ", DType::kOther, 8},
    DTypeTraits{"I16", DType::kOther, 16},
    DTypeTraits{"U16", DType::kOther, 16},
    DTypeTraits{"F16", DType::kOther, 16},
    DTypeTraits{"I32", DType::kOther, 32},
    DTypeTraits{"U32", DType::kOther, 32},
    DTypeTraits{"C64", DType::kOther, 64},
    DTypeTraits{"F64", DType::kOther, 64},
    DTypeTraits{"I64", DType::kOther, 64},
    DTypeTraits{"U64", DType::kOther, 64},
};

}  // namespace

const DTypeTraits* find_dtype(std::string_view name) {
  const auto* found = std::ranges::find(kDTypes, name, &DTypeTraits::name);
  return found == kDTypes.end() ? nullptr : found;
}

const DTypeTraits& dtype_traits(DType dtype) {
  if (dtype == DType::kOther) {
    fail(ErrorCode::kInvalidArgument, "a dtype known only by name has no traits of its own");
  }
  return *std::ranges::find(kDTypes, dtype, &DTypeTraits::dtype);
}

}  // namespace rowband
