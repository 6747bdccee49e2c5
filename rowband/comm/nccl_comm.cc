#include "rowband/comm/nccl_comm.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/comm/communicator.h"
#include "rowband/comm/nccl_control.h"
#include "rowband/comm/nccl_library.h"

namespace rowband::comm {
namespace {

using Clock = Deadline::Clock;

constexpr Clock::time_point kNever = Clock::time_point::max();

// How often the watch looks at the peers and at NCCL.
constexpr std::chrono::milliseconds kBetweenLooks{20};
// What a peer queued before it ended still arrives; it is lost when that takes longer.
constexpr std::chrono::seconds kGraceAfterDeath{1};
// By then a call that waits for no peer has left NCCL; one that does is ended by an abort alone.
constexpr std::chrono::milliseconds kGraceForCall{100};
// By then an aborted kernel has left its stream.
constexpr std::chrono::seconds kGraceAfterAbort{5};
// A wait yields for the time that short collectives take, then sleeps between polls.
constexpr std::chrono::milliseconds kYieldFor{2};
constexpr std::chrono::microseconds kSleep{50};

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};

class QueuedNcclComm final : public NcclComm {
 public:
  QueuedNcclComm(std::unique_ptr<NcclControl> control, Deadline deadline);
  ~QueuedNcclComm() override;

  const NcclRank& rank() const override { return control_->rank(); }
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline, CUstream_st* stream) override;
  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline,
                  CUstream_st* stream) override;
  void wait(CUstream_st* stream, std::string_view what, Deadline deadline) override;
  std::string failure() const override;

 private:
  template <typename Call>
  void queue(const char* what, Deadline deadline, CUstream_st* stream, const Call& call);
  void require_healthy() const;
  void connect(Deadline deadline);
  void note_queued(Deadline deadline, CUstream_st* stream);
  void watch(const std::stop_token& stop);
  bool something_is_on_its_way() const;
  std::optional<Error> reason_to_give_up(Clock::time_point& death_seen) const;
  Error late(Deadline deadline) const;
  void give_up(const Error& reason);
  void give_up(const Error& reason, std::unique_lock<std::mutex>& lock);
  void let_go(decltype(&::ncclCommDestroy) how) const;

  const std::unique_ptr<NcclControl> control_;
  ncclComm_t comm_ = nullptr;
  std::unique_ptr<CUevent_st, DestroyEvent> last_;  // recorded behind the last call
  std::atomic<bool> captured_ = false;              // a graph holds a call

  mutable std::mutex mutex_;  // of what follows
  std::condition_variable_any stopped_;
  std::condition_variable left_;  // no call is inside NCCL any more
  std::optional<Error> failure_;
  std::optional<Deadline> queued_;   // of the last call that no graph took
  std::optional<Deadline> entered_;  // of a call that is inside NCCL
  std::jthread watch_;
};

// The communicator of the collectives is one whose calls queue in the caller's thread, in about 10
// us; where NCCL returns at once it starts a thread per call, which takes 100 us and more. It is
// split off the one with bounded waits.
QueuedNcclComm::QueuedNcclComm(std::unique_ptr<NcclControl> control, Deadline deadline)
    : control_(std::move(control)) {
  const cuda::DeviceScope scope(rank().device);
  cudaEvent_t event = nullptr;
  cuda::check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  last_.reset(event);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  const ncclResult_t result =
      nccl().ncclCommSplit(control_->get(), 0, rank().rank, &comm_, &config);
  try {
    control_->settle(result, "making NCCL's communicator", deadline);
  } catch (const Error&) {
    if (comm_ != nullptr) let_go(nccl().ncclCommAbort);
    throw;
  }
  watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
  try {
    connect(deadline);
  } catch (const Error& error) {
    give_up(error);
    throw;
  }
}

QueuedNcclComm::~QueuedNcclComm() {
  watch_ = std::jthread();
  if (!failure_) let_go(nccl().ncclCommDestroy);
}

// NCCL waits here for the end of every graph that captured a call; nobody else should.
void QueuedNcclComm::let_go(decltype(&::ncclCommDestroy) how) const {
  const auto end = [how, comm = comm_, device = rank().device] {
    const cuda::DeviceScope scope(device, std::nothrow);
    how(comm);
  };
  if (captured_) {
    std::thread(end).detach();
  } else {
    end();
  }
}

// NCCL connects the ranks in the first call of a kind: now, when they are known to be here.
void QueuedNcclComm::connect(Deadline deadline) {
  cudaStream_t made = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "making a stream");
  const std::unique_ptr<CUstream_st, cuda::DestroyStream> stream(made);
  constexpr std::int64_t kSmall = 8, kLarge = 1 << 20;
  const cuda::DeviceMemory zeros = cuda::allocate_device(kLarge * sizeof(Bf16));
  cuda::check(cudaDeviceSynchronize(), "clearing device memory");
  for (const std::int64_t count : {kSmall, kLarge}) {
    all_reduce(static_cast<Bf16*>(zeros.get()), count, deadline, made);
    wait(made, "connecting the ranks", deadline);
  }
}

void QueuedNcclComm::require_healthy() const {
  if (failure_) throw Error(*failure_);
}

template <typename Call>
void QueuedNcclComm::queue(const char* what, Deadline deadline, CUstream_st* stream,
                           const Call& call) {
  const cuda::DeviceScope scope(rank().device);
  {
    const std::lock_guard lock(mutex_);
    require_healthy();
    entered_ = deadline;
  }
  const ncclResult_t result = call();
  {
    const std::lock_guard lock(mutex_);
    entered_.reset();
    left_.notify_all();
    require_healthy();
  }
  if (result != ncclSuccess) {
    try {
      nccl_check(result, what);
    } catch (const Error& error) {
      give_up(error);
      throw;
    }
  }
  note_queued(deadline, stream);
}

void QueuedNcclComm::note_queued(Deadline deadline, CUstream_st* stream) {
  cudaStreamCaptureStatus captured = cudaStreamCaptureStatusNone;
  cuda::check(cudaStreamIsCapturing(stream, &captured), "asking whether a stream is captured");
  if (captured != cudaStreamCaptureStatusNone) {
    captured_ = true;
    return;
  }
  const std::lock_guard lock(mutex_);
  cuda::check(cudaEventRecord(last_.get(), stream), "recording an event");
  queued_ = deadline;
}

void QueuedNcclComm::all_reduce(Bf16* data, std::int64_t count, Deadline deadline,
                                CUstream_st* stream) {
  queue("ncclAllReduce", deadline, stream, [&] {
    return nccl().ncclAllReduce(data, data, static_cast<std::size_t>(count), ncclBfloat16, ncclSum,
                                comm_, stream);
  });
}

void QueuedNcclComm::all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline,
                                CUstream_st* stream) {
  queue("ncclAllGather", deadline, stream,
        [&] { return nccl().ncclAllGather(send, recv, bytes, ncclInt8, comm_, stream); });
}

void QueuedNcclComm::wait(CUstream_st* stream, std::string_view what, Deadline deadline) {
  const cuda::DeviceScope scope(rank().device);
  const auto started = Clock::now();
  cudaError_t state = cudaSuccess;
  while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
    const auto now = Clock::now();
    if (now >= deadline.at()) {
      give_up(
          Error(ErrorCode::kDeadline, fmt::format("{}: rank {} waited {:.3g} s for its peers", what,
                                                  rank().rank, deadline.budget_seconds())));
      if (now >= deadline.at() + kGraceAfterAbort) break;
    }
    if (now - started < kYieldFor) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kSleep);
    }
  }
  if (state != cudaErrorNotReady) cuda::check(state, std::string(what));
  const std::lock_guard lock(mutex_);
  require_healthy();
}

std::string QueuedNcclComm::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_ ? failure_->what() : "";
}

// Ends the kernels that wait, so that streams go on. The first reason stays.
void QueuedNcclComm::give_up(const Error& reason) {
  std::unique_lock lock(mutex_);
  if (!failure_) give_up(reason, lock);
}

// From here on no call enters NCCL, and none that passes through may lose its communicator there.
void QueuedNcclComm::give_up(const Error& reason, std::unique_lock<std::mutex>& lock) {
  failure_ = reason;
  left_.wait_for(lock, kGraceForCall, [this] { return !entered_; });
  lock.unlock();
  let_go(nccl().ncclCommAbort);
}

// With the mutex held. Of a graph's replays nothing is known, so one may always be on its way.
bool QueuedNcclComm::something_is_on_its_way() const {
  return entered_ || captured_ || (queued_ && cudaEventQuery(last_.get()) == cudaErrorNotReady);
}

// With the mutex held. A peer that ends when it has done its part takes nothing away.
std::optional<Error> QueuedNcclComm::reason_to_give_up(Clock::time_point& death_seen) const {
  if (!something_is_on_its_way()) {
    death_seen = kNever;
    return std::nullopt;
  }
  ncclResult_t state = ncclSuccess;
  if (!entered_ && nccl().ncclCommGetAsyncError(comm_, &state) == ncclSuccess &&
      state != ncclSuccess && state != ncclInProgress) {
    return Error(state == ncclRemoteError ? ErrorCode::kPeerLost : ErrorCode::kUnavailable,
                 fmt::format("NCCL: {}", nccl().ncclGetErrorString(state)));
  }
  if (const int lost = first_lost(rank()); lost >= 0) {
    const auto now = Clock::now();
    death_seen = std::min(death_seen, now);
    if (now - death_seen > kGraceAfterDeath) {
      return Error(ErrorCode::kPeerLost, fmt::format("NCCL: rank {} is gone", lost));
    }
  }
  if (entered_ && entered_->passed()) return late(*entered_);
  if (queued_ && queued_->passed() && cudaEventQuery(last_.get()) == cudaErrorNotReady) {
    return late(*queued_);
  }
  return std::nullopt;
}

Error QueuedNcclComm::late(Deadline deadline) const {
  return Error(ErrorCode::kDeadline, fmt::format("NCCL: rank {} waited {:.3g} s for its peers",
                                                 rank().rank, deadline.budget_seconds()));
}

void QueuedNcclComm::watch(const std::stop_token& stop) {
  const cuda::DeviceScope scope(rank().device, std::nothrow);
  // Asking for an event here must not break a capture in another thread.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  Clock::time_point death_seen = kNever;
  std::unique_lock lock(mutex_);
  while (!failure_) {
    stopped_.wait_for(lock, stop, kBetweenLooks, [] { return false; });
    // Of a communicator that another thread has given up nothing may be asked.
    if (stop.stop_requested() || failure_) return;
    if (const auto reason = reason_to_give_up(death_seen)) return give_up(*reason, lock);
  }
}

}  // namespace

std::unique_ptr<NcclComm> make_nccl_comm(const NcclId& id, NcclRank rank, Deadline deadline) {
  auto control = std::make_unique<NcclControl>(id, std::move(rank), deadline);
  return std::make_unique<QueuedNcclComm>(std::move(control), deadline);
}

std::unique_ptr<NcclComm> make_nccl_comm(Communicator& comm, int device, Deadline deadline) {
  auto control = NcclControl::over(comm, device, deadline);
  std::unique_ptr<NcclComm> made;
  std::string failure;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    made = std::make_unique<QueuedNcclComm>(std::move(control), deadline);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(comm, "NCCL", failure, code, deadline);
  return made;
}

}  // namespace rowband::comm
