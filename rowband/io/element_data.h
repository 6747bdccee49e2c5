// Numbers out of raw file bytes, which may lie at any address.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include "rowband/numerics/types.h"

namespace rowband {

template <typename T>
T load_element(std::span<const std::byte> data, std::size_t index) {
  T value;
  std::memcpy(&value, data.data() + index * sizeof(T), sizeof(T));
  return value;
}

inline Bf16 as_bf16(Bf16 value) { return value; }
inline Bf16 as_bf16(float value) { return to_bf16(value); }

}  // namespace rowband
