// Getting every page of a shared mapping now, so that a lack of memory is an error in words here
// and not a SIGBUS at the first store.
#pragma once

#include <cstddef>
#include <string_view>

namespace rowband::comm {

// Memory that the machine can still give, in bytes; the largest number when it does not say.
std::size_t available_memory();

// Throws Error(kOutOfMemory), naming `what`, when the pages cannot be had. On kernels before 5.14,
// which cannot say, nothing is done and false returned.
bool prefault(std::byte* address, std::size_t length, std::string_view what);

}  // namespace rowband::comm
