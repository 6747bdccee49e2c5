// The fused call on one GPU rank: its window, and the arguments of the kernel that does it all.
//
// Calls are asynchronous on the caller's stream; a failure is found at the next call or in
// poison().
#pragma once

#include <memory>
#include <string>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/engines/cuda/copy_queues.h"
#include "rowband/engines/cuda/device_timeline.h"
#include "rowband/engines/cuda/fused_arguments.h"
#include "rowband/engines/cuda/window.h"
#include "rowband/engines/engine.h"

namespace rowband::cuda {

class CudaFused final : public FusedExecutor {
 public:
  // Collective. `clusters` is this rank's share of its device, resident beside the other ranks'
  // shares, `start` when its kernels may begin; `own_stream` takes the calls that name none.
  CudaFused(Communicator& comm, const PlanSpec& spec, const FusedOptions& options, int device,
            int clusters, Start start, cudaStream_t own_stream);
  ~CudaFused() override;

  const Bf16* run(const FusedCall& call) override;
  std::string why_not(const FusedCall& call) const override { return why_not_aligned(call); }
  void refuse(void* stream) override;
  const WindowLayout& window() const override { return layout_; }
  std::int64_t calls() const override { return calls_; }
  bool in_window(const void* begin, std::int64_t bytes) const override;
  std::string poison() const override;

 private:
  void prove_ranks_run_together(Communicator& comm, Deadline deadline);
  void queue_empty_calls(cudaStream_t second, std::chrono::nanoseconds patience);
  std::string why_peers_did_not_begin(std::chrono::nanoseconds patience) const;
  void follow_last_call(cudaStream_t stream);
  FusedArguments arguments(const FusedCall& call, const CallPlan& plan);
  void point_to_windows(FusedArguments& a, const CallPlan& plan) const;
  cudaStream_t stream_of(void* given) const {
    return given != nullptr ? static_cast<cudaStream_t>(given) : own_stream_;
  }
  std::int64_t output_slot() const;  // offset of the call's
  int blocks() const { return 2 * clusters_; }
  std::byte* part(int rank) const { return window_->part(rank); }
  std::uint32_t* flags(int at_rank, std::uint32_t leg, int from) const;
  Card* cards(int at_rank, int from) const;
  Status* failure(int at_rank, int from) const;
  void queue_call(const FusedCall& call, cudaStream_t stream, bool& launched);
  void try_to_refuse(cudaStream_t stream);
  void queue_copies(const FusedArguments& a, const CallPlan& plan);

  const PlanSpec spec_;
  const FusedOptions options_;
  const int rank_, device_, clusters_;
  const Start start_;
  const cudaStream_t own_stream_;
  const WindowLayout layout_;
  std::unique_ptr<Window> window_;
  DeviceMemory counters_;
  PinnedMemory host_status_;
  std::unique_ptr<CopyQueues> copies_;  // transport copy_engine
  std::unique_ptr<DeviceTimeline> timeline_;
  Event last_call_;
  cudaStream_t last_stream_;
  std::int64_t calls_ = 0;
  std::string half_queued_;  // why a call could not be queued whole: the op is of no use then
};

}  // namespace rowband::cuda
