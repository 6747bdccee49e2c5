// The header of a .npy file. Format: NumPy Enhancement Proposal 1 and numpy.lib.format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rowband {

struct NpyHeader {
  std::string descr;  // "<f4"
  bool fortran_order = false;
  std::vector<std::int64_t> shape;  // each >= 0
  std::size_t data_begin = 0;       // in the file
};

// Versions 1.0, 2.0 and 3.0. Throws Error(kFormat) naming `file`.
NpyHeader parse_npy_header(std::span<const std::byte> bytes, const std::string& file);

// Magic, length and dictionary of a dense C-order array, padded so that the data is aligned to 64.
std::string make_npy_header(std::string_view descr, std::int64_t rows, std::int64_t cols);

}  // namespace rowband
