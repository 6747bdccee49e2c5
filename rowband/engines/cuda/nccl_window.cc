#include "rowband/engines/cuda/nccl_window.h"

#include "rowband/base/fail.h"

#ifdef ROWBAND_HAVE_NCCL

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/comm/nccl_control.h"
#include "rowband/comm/nccl_library.h"
#include "rowband/engines/cuda/nccl_addresses.h"
#include "rowband/engines/fault_hooks.h"

namespace rowband::cuda {
namespace {

using comm::nccl;
using comm::NcclControl;

struct FreeNcclMemory {
  void operator()(void* p) const { nccl().ncclMemFree(p); }
};

class NcclWindow final : public Window {
 public:
  explicit NcclWindow(std::unique_ptr<NcclControl> control) : control_(std::move(control)) {}
  // Local: what the peers map of this part stays theirs until they let go of it.
  ~NcclWindow() override {
    const DeviceScope scope(control_->rank().device, std::nothrow);
    if (window_ != nullptr && control_->usable())
      nccl().ncclCommWindowDeregister(control_->get(), window_);
  }

  // Local.
  void allocate(std::size_t bytes) {
    void* memory = nullptr;
    const ncclResult_t result = nccl().ncclMemAlloc(&memory, bytes);
    if (result != ncclSuccess) {
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "asking for free device memory");
      fail(ErrorCode::kOutOfMemory, "ncclMemAlloc of {} bytes: {} ({} bytes are free)", bytes,
           nccl().ncclGetErrorString(result), free);
    }
    memory_.reset(memory);
    bytes_ = bytes;
    check(cudaMemset(memory, 0, bytes), "clearing the window");
    check(cudaDeviceSynchronize(), "clearing the window");
  }

  // Collective.
  void join(const FaultHooks* faults, Deadline deadline) {
    constexpr const char* kWhat = "ncclCommWindowRegister";
    const ncclResult_t result = nccl().ncclCommWindowRegister(
        control_->get(), memory_.get(), bytes_, &window_, NCCL_WIN_COLL_SYMMETRIC);
    control_->settle(result, kWhat, deadline);
    if (faults != nullptr && faults->register_null_window) {
      nccl().ncclCommWindowDeregister(control_->get(), std::exchange(window_, nullptr));
    }
    // NCCL's way to say that these ranks have no symmetric memory.
    if (window_ == nullptr) {
      fail(ErrorCode::kUnavailable,
           "{} reports success and gives no window: NCCL has no symmetric memory between these "
           "ranks; NCCL_DEBUG=INFO shows why (NCCL_CUMEM_ENABLE=0, NCCL_WIN_ENABLE=0, or GPUs that "
           "do not reach each other)",
           kWhat);
    }
    const int ranks = control_->rank().size;
    const int reached = nccl().ncclTeamLsa(control_->get()).nRanks;
    if (reached != ranks) {
      fail(ErrorCode::kUnavailable, "NCCL reaches {} of {} ranks by load and store", reached,
           ranks);
    }
    read_addresses(static_cast<std::size_t>(ranks));
  }

 private:
  void read_addresses(std::size_t ranks) {
    const DeviceMemory addresses = allocate_device(ranks * sizeof(std::byte*));
    launch_window_addresses(window_, static_cast<int>(ranks),
                            static_cast<std::byte**>(addresses.get()));
    parts_.resize(ranks);
    check(cudaMemcpy(parts_.data(), addresses.get(), ranks * sizeof(std::byte*),
                     cudaMemcpyDeviceToHost),
          "reading the addresses of a window");
    for (const std::byte* part : parts_) {
      if (part == nullptr)
        fail(ErrorCode::kUnavailable, "NCCL gives no address of a peer's window");
    }
  }

  std::unique_ptr<void, FreeNcclMemory> memory_;
  std::unique_ptr<NcclControl> control_;  // ends before the memory that is registered with it
  std::size_t bytes_ = 0;
  ncclWindow_t window_ = nullptr;
};

// The device code of one NCCL version reads the windows of that version.
void require_same_windows(Communicator& comm, Deadline deadline) {
  std::string failure;
  if (const std::string why = comm::why_no_nccl(); !why.empty()) {
    failure = why;
  } else if (nccl().version / 100 != NCCL_VERSION_CODE / 100) {
    failure = fmt::format("libnccl.so.2 is NCCL {}, and this was built for the windows of {}.{}",
                          comm::nccl_version_text(nccl().version), NCCL_MAJOR, NCCL_MINOR);
  }
  agree_on_success(comm, "NCCL's window", failure, ErrorCode::kUnavailable, deadline);
}

}  // namespace

std::unique_ptr<Window> make_nccl_window(Communicator& comm, std::size_t bytes, int device,
                                         const FaultHooks* faults, Deadline deadline) {
  require_same_windows(comm, deadline);
  auto window = std::make_unique<NcclWindow>(NcclControl::over(comm, device, deadline));
  std::string failure;
  ErrorCode code = ErrorCode::kOutOfMemory;
  const auto attempt = [&](std::string_view what, const auto& step) {
    try {
      step();
    } catch (const Error& error) {
      failure = error.what();
      code = error.code();
    }
    agree_on_success(comm, what, failure, code, deadline);
  };
  attempt("the symmetric window on the GPU", [&] {
    if (faults != nullptr && faults->fail_window_allocation) {
      fail(ErrorCode::kOutOfMemory, "ordered by a fault hook");
    }
    window->allocate(bytes);
  });
  attempt("NCCL's window", [&] { window->join(faults, deadline); });
  return window;
}

}  // namespace rowband::cuda

#else

#include "rowband/comm/nccl_comm.h"

namespace rowband::cuda {

std::unique_ptr<Window> make_nccl_window(Communicator&, std::size_t, int, const FaultHooks*,
                                         Deadline) {
  fail(ErrorCode::kUnavailable,
       "the ranks are processes, whose GPU window needs NCCL, and {}; run them as threads of one "
       "process",
       comm::why_no_nccl());
}

}  // namespace rowband::cuda

#endif
