// What only NCCL's device code tells: where the parts of a window are.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

struct ncclWindow_vidmem;

namespace rowband::cuda {

// Writes the address of `rank`'s part, for this GPU, to addresses[rank]; device memory, on the
// default stream.
void launch_window_addresses(ncclWindow_vidmem* window, int ranks, std::byte** addresses);

}  // namespace rowband::cuda
