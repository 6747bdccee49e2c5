#include "rowband/engines/cuda/process_window.h"

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

struct Published {
  int device;
  const std::shared_ptr<void>*
      part;  // the peers share it: a rank that failed may close before them
};

void enable_peer_access(int device, int peer, bool denied) {
  int possible = 0;
  if (!denied) {
    if (device == peer) return;
    check(cudaDeviceCanAccessPeer(&possible, device, peer), "asking for peer access");
  }
  if (!possible) {
    fail(ErrorCode::kUnavailable,
         "GPU {} cannot reach the memory of GPU {}: no NVLink or PCIe peer access", device, peer);
  }
  const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
    return;
  }
  check(result, fmt::format("enabling access from GPU {} to GPU {}", device, peer));
}

class ProcessWindow final : public Window {
 public:
  // Local.
  explicit ProcessWindow(std::size_t bytes) : own_(allocate_device(bytes)) {
    check(cudaDeviceSynchronize(), "clearing the window");
  }

  // Collective. What keeps this rank from the peers' parts, or "".
  std::string join(Communicator& comm, int device, bool denied, Deadline deadline) {
    const Published own{device, &own_};
    std::vector<Published> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather(&own, all.data(), sizeof own, deadline);
    try {
      for (const Published& theirs : all) {
        enable_peer_access(device, theirs.device, denied);
        kept_.push_back(*theirs.part);
        parts_.push_back(static_cast<std::byte*>(theirs.part->get()));
      }
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  const std::shared_ptr<void> own_;
  std::vector<std::shared_ptr<void>> kept_;  // every rank's part
};

}  // namespace

std::unique_ptr<Window> make_process_window(Communicator& comm, std::size_t bytes, int device,
                                            const FaultHooks* faults, Deadline deadline) {
  std::unique_ptr<ProcessWindow> window;
  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  try {
    if (faults != nullptr && faults->fail_window_allocation) {
      fail(ErrorCode::kOutOfMemory, "ordered by a fault hook");
    }
    window = std::make_unique<ProcessWindow>(bytes);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "the symmetric window on the GPU", failure, code, deadline);
  failure = window->join(comm, device, faults != nullptr && faults->deny_peer_access, deadline);
  agree_on_success(comm, "access to the peers' windows", failure, ErrorCode::kUnavailable,
                   deadline);
  return window;
}

}  // namespace rowband::cuda
