// A 64-bit fingerprint of bits, to compare results between ranks and calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace rowband::cli {

// Each step is a bijection of the state for a given word, so two inputs of one length that differ
// in a single 8-byte word never collide; others do with a chance of about 2^-64.
inline std::uint64_t digest_of(std::span<const std::byte> bytes) {
  std::uint64_t state = 0x9E3779B97F4A7C15u ^ bytes.size();
  const auto absorb = [&state](std::uint64_t word) {
    state = (state ^ word) * 0xD1B54A32D192ED03u;
    state ^= state >> 32;
  };
  std::size_t at = 0;
  for (; at + sizeof(std::uint64_t) <= bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    absorb(word);
  }
  std::uint64_t rest = 0;
  if (at < bytes.size()) {
    std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    absorb(rest);
  }
  return state;
}

}  // namespace rowband::cli
