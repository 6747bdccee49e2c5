// Stores to a peer, for bandwidth.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace rowband::cuda {

// Loads the kernel for the current device, so that no launch loads code.
void load_store_kernel();
// Copies `vectors` vectors of 16 bytes by `blocks` blocks.
void launch_stores(void* to, const void* from, std::size_t vectors, int blocks,
                   cudaStream_t stream);

}  // namespace rowband::cuda
