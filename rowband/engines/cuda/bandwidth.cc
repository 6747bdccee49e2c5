#include "rowband/engines/cuda/bandwidth.h"

#include <algorithm>
#include <array>
#include <functional>
#include <thread>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/store_kernel.h"

namespace rowband::cuda {
namespace {

constexpr int kRounds = 4, kTransfersPerRound = 4;

// Queues one transfer of `bytes` from `from` on `device` to `to` on its peer.
using Transfer = std::function<void(void* to, int peer, const void* from, int device,
                                    std::size_t bytes, cudaStream_t stream)>;

// One GPU's end: it sends from its memory into its peer's.
struct End {
  int device;
  DeviceMemory sent, received;
  Stream stream;
  Event begin, end;

  End(int on, int peer, std::size_t bytes) : device(on) {
    const DeviceScope scope(device);
    int possible = 0;
    check(cudaDeviceCanAccessPeer(&possible, device, peer), "asking for peer access");
    if (!possible) {
      fail(ErrorCode::kUnavailable, "GPU {} cannot reach the memory of GPU {}", device, peer);
    }
    if (const cudaError_t result = cudaDeviceEnablePeerAccess(peer, 0);
        result == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
    } else {
      check(result, fmt::format("enabling access from GPU {} to GPU {}", device, peer));
    }
    load_store_kernel();
    sent = allocate_device(bytes);
    received = allocate_device(bytes);
    stream = make_stream();
    for (Event* event : {&begin, &end}) {
      cudaEvent_t one = nullptr;
      check(cudaEventCreate(&one), "making an event");
      event->reset(one);
    }
  }

  double seconds() const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin.get(), end.get()), "the time of a transfer");
    return ms / 1e3;
  }
  void leave_behind() {
    static_cast<void>(sent.release());
    static_cast<void>(received.release());
    static_cast<void>(stream.release());
    static_cast<void>(begin.release());
    static_cast<void>(end.release());
  }
};

void wait(std::array<End, 2>& ends, Deadline deadline, const char* what) {
  for (End& one : ends) {
    const DeviceScope scope(one.device);
    cudaError_t state = cudaEventQuery(one.end.get());
    while (state == cudaErrorNotReady && !deadline.passed()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      state = cudaEventQuery(one.end.get());
    }
    if (state == cudaErrorNotReady) {
      for (End& left : ends) left.leave_behind();
      fail(ErrorCode::kDeadline, "{} between GPU {} and GPU {} did not end in time", what,
           ends[0].device, ends[1].device);
    }
    check(state, what);
  }
}

double rate(int a, int b, std::size_t bytes, Deadline deadline, const char* what,
            const Transfer& transfer) {
  if (a == b) fail(ErrorCode::kUnavailable, "GPU {} has no link to itself", a);
  bytes = (bytes + 15) / 16 * 16;
  std::array<End, 2> ends = {End(a, b, bytes), End(b, a, bytes)};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {  // the first warms up, and may as well count
    for (int i = 0; i < 2; ++i) {
      End &own = ends[i], &peer = ends[1 - i];
      const DeviceScope scope(own.device);
      check(cudaEventRecord(own.begin.get(), own.stream.get()), "recording an event");
      for (int n = 0; n < kTransfersPerRound; ++n) {
        transfer(peer.received.get(), peer.device, own.sent.get(), own.device, bytes,
                 own.stream.get());
      }
      check(cudaEventRecord(own.end.get(), own.stream.get()), "recording an event");
    }
    wait(ends, deadline, what);
    const double seconds = std::max(ends[0].seconds(), ends[1].seconds());
    best = std::max(best, kTransfersPerRound * static_cast<double>(bytes) / seconds / 1e9);
  }
  return best;
}

int multiprocessors(int device) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
        "asking for the multiprocessors");
  return count;
}

}  // namespace

double copy_engine_rate(int a, int b, std::size_t bytes, Deadline deadline) {
  return rate(
      a, b, bytes, deadline, "peer copies",
      [](void* to, int peer, const void* from, int device, std::size_t size, cudaStream_t stream) {
        check(cudaMemcpyPeerAsync(to, peer, from, device, size, stream), "a peer copy");
      });
}

double store_rate(int a, int b, std::size_t bytes, Deadline deadline) {
  return rate(
      a, b, bytes, deadline, "stores",
      [](void* to, int, const void* from, int device, std::size_t size, cudaStream_t stream) {
        launch_stores(to, from, size / 16, multiprocessors(device), stream);
      });
}

}  // namespace rowband::cuda
