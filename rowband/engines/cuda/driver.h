// The driver's own functions, found at run time: a program with this engine starts without a
// driver.
#pragma once

#include <cuda.h>

#include <string>

namespace rowband::cuda {

// As it was in CUDA `version` (12000 is 12.0); null where the driver has none.
void* find_driver_function(const char* name, unsigned version);

// "invalid argument (CUDA_ERROR_INVALID_VALUE)": the driver's own words.
std::string driver_error_text(CUresult result);

}  // namespace rowband::cuda
