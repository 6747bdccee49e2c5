#include "rowband/engines/cuda/nvml.h"

#include <dlfcn.h>

namespace rowband::cuda {
namespace {

// Of its stable C interface, what is used here; 0 is success everywhere.
class Nvml {
 public:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto find = [library]<typename T>(T& function, const char* name) {
      function = reinterpret_cast<T>(dlsym(library, name));
      return function != nullptr;
    };
    int (*init)() = nullptr;
    usable_ = find(init, "nvmlInit_v2") && find(driver_version, "nvmlSystemGetDriverVersion") &&
              find(by_pci_address, "nvmlDeviceGetHandleByPciBusId_v2") &&
              find(link_state, "nvmlDeviceGetNvLinkState") && init() == 0;
  }
  bool usable() const { return usable_; }

  int (*driver_version)(char* text, unsigned length) = nullptr;
  int (*by_pci_address)(const char* address, void** device) = nullptr;
  int (*link_state)(void* device, unsigned link, int* active) = nullptr;

 private:
  bool usable_ = false;
};

const Nvml& nvml() {
  static const Nvml loaded;  // stays for the life of the process
  return loaded;
}

constexpr unsigned kMostLinks = 18;  // of a Hopper GPU

}  // namespace

std::string nvml_driver_version() {
  char text[96] = "";
  if (!nvml().usable() || nvml().driver_version(text, sizeof text) != 0) return "";
  return text;
}

std::optional<int> nvml_active_links(const std::string& pci_address) {
  void* device = nullptr;
  if (!nvml().usable() || nvml().by_pci_address(pci_address.c_str(), &device) != 0) {
    return std::nullopt;
  }
  int up = 0, known = 0;
  for (unsigned link = 0; link < kMostLinks; ++link) {
    int active = 0;
    if (nvml().link_state(device, link, &active) != 0) continue;  // there is no such link
    ++known;
    up += active;
  }
  if (known == 0) return std::nullopt;
  return up;
}

}  // namespace rowband::cuda
