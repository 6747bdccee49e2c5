// What the driver's management library tells of GPUs, where it is installed: it is loaded when it
// is first asked for. Asking it starts no CUDA.
#pragma once

#include <optional>
#include <string>

namespace rowband::cuda {

// "580.159.04", or "" where the library is not found.
std::string nvml_driver_version();
// NVLinks of the GPU at this PCI address ("0000:1b:00.0") that are up; none where it is not known.
std::optional<int> nvml_active_links(const std::string& pci_address);

}  // namespace rowband::cuda
