#include "rowband/engines/cuda/all_reduce.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "rowband/comm/gpu_identity.h"
#include "rowband/comm/nccl_comm.h"

namespace rowband::cuda {
namespace {

class AllReduceThroughHost final : public AllReduce {
 public:
  AllReduceThroughHost(Communicator& comm, Engine& engine, const std::string& why)
      : comm_(comm),
        engine_(engine),
        description_(fmt::format("all-reduce of the {} communicator, through the host: {}",
                                 comm.kind(), why)) {}

  void run(Bf16* data, std::int64_t count, Deadline deadline, void* stream) override {
    const auto size = static_cast<std::size_t>(count);
    if (on_host_.size() < size) on_host_.resize(size);
    engine_.download(on_host_.data(), data, size * sizeof(Bf16), stream);
    comm_.all_reduce(on_host_.data(), count, deadline);
    engine_.copy(data, on_host_.data(), size * sizeof(Bf16), stream);
    engine_.synchronize(stream);
  }
  std::string_view description() const override { return description_; }

 private:
  Communicator& comm_;
  Engine& engine_;
  const std::string description_;
  std::vector<Bf16> on_host_;
};

class NcclAllReduce final : public AllReduce {
 public:
  NcclAllReduce(std::shared_ptr<comm::NcclComm> nccl, Engine& engine, cudaStream_t own_stream)
      : nccl_(std::move(nccl)),
        engine_(engine),
        own_stream_(own_stream),
        description_(fmt::format("ncclAllReduce of NCCL {}", comm::nccl_version())) {}
  ~NcclAllReduce() override {
    try {
      engine_.finish();  // of no stream is known that it has passed
    } catch (const Error&) {
      // On a GPU that has failed no sum is on its way.
    }
  }

  void run(Bf16* data, std::int64_t count, Deadline deadline, void* stream) override {
    nccl_->all_reduce(data, count, deadline,
                      stream != nullptr ? static_cast<cudaStream_t>(stream) : own_stream_);
  }
  std::string poison() const override { return nccl_->failure(); }
  std::string_view description() const override { return description_; }

 private:
  const std::shared_ptr<comm::NcclComm> nccl_;
  Engine& engine_;
  const cudaStream_t own_stream_;
  const std::string description_;
};

// What every rank tells, so that all choose alike.
struct Told {
  comm::GpuIdentity gpu;
  bool has_nccl;
  bool shares;  // has a communicator of this group that is healthy
};

// "" or why NCCL cannot sum here.
std::string why_through_host(const std::vector<Told>& ranks) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].has_nccl) return fmt::format("rank {} has no NCCL", rank);
    for (std::size_t other = 0; other < rank; ++other) {
      if (ranks[rank].gpu.same_gpu(ranks[other].gpu)) {
        return fmt::format("ranks {} and {} share a GPU, and NCCL joins one rank per GPU", other,
                           rank);
      }
    }
  }
  return "";
}

}  // namespace

std::unique_ptr<AllReduce> make_all_reduce(Communicator& comm, Engine& engine, int device,
                                           cudaStream_t own_stream, SharedNccl& shared,
                                           Deadline deadline) {
  std::shared_ptr<comm::NcclComm> nccl =
      shared.group == &comm ? shared.nccl.lock() : std::shared_ptr<comm::NcclComm>();
  Told own{{}, comm::why_no_nccl().empty(), nccl != nullptr && nccl->failure().empty()};
  std::string failure;
  try {
    own.gpu = comm::gpu_identity(device);
  } catch (const Error& error) {
    failure = error.what();
  }
  agree_on_success(comm, "the base path's all-reduce", failure, ErrorCode::kUnavailable, deadline);
  std::vector<Told> all(static_cast<std::size_t>(comm.size()));
  comm.all_gather(&own, all.data(), sizeof own, deadline);
  const std::string why = why_through_host(all);
  if (!why.empty()) return std::make_unique<AllReduceThroughHost>(comm, engine, why);
  if (!std::ranges::all_of(all, &Told::shares)) {
    nccl = comm::make_nccl_comm(comm, device, deadline);
    shared = {&comm, nccl};
  }
  return std::make_unique<NcclAllReduce>(std::move(nccl), engine, own_stream);
}

}  // namespace rowband::cuda
