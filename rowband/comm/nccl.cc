#include "rowband/comm/nccl.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "rowband/base/cuda/device_memory.h"
#include "rowband/base/cuda/launch_check.h"
#include "rowband/comm/callbacks.h"

namespace rowband {
namespace {

using comm::NcclComm;
using comm::NcclId;
using comm::NcclRank;

// What travels at a time, per rank.
constexpr std::size_t kPieceBytes = 4u << 20;

// Host memory through the GPU: pinned memory, device memory, NCCL, and back.
class Staging {
 public:
  Staging(std::unique_ptr<NcclComm> nccl, int device, int size)
      : nccl_(std::move(nccl)), device_(device), size_(static_cast<std::size_t>(size)) {
    const cuda::DeviceScope scope(device_);
    cudaStream_t stream = nullptr;
    cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    stream_.reset(stream);
    host_ = cuda::allocate_pinned(kPieceBytes * size_);
    send_ = cuda::allocate_device(kPieceBytes);
    recv_ = cuda::allocate_device(kPieceBytes * size_);
    cuda::check(cudaDeviceSynchronize(), "clearing device memory");
  }

  // Nothing asks for the peers' lives any more.
  void stop() { nccl_.reset(); }

  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) {
    for (std::size_t done = 0; done < bytes; done += kPieceBytes) {
      const std::size_t piece = std::min(kPieceBytes, bytes - done);
      up(static_cast<const std::byte*>(send) + done, piece);
      nccl_->all_gather(send_.get(), recv_.get(), piece, deadline, stream_.get());
      down(recv_.get(), piece * size_, "all_gather", deadline);
      for (std::size_t rank = 0; rank < size_; ++rank) {
        std::memcpy(static_cast<std::byte*>(recv) + rank * bytes + done,
                    static_cast<const std::byte*>(host_.get()) + rank * piece, piece);
      }
    }
  }

  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) {
    auto* bytes = reinterpret_cast<std::byte*>(data);
    const std::size_t all = static_cast<std::size_t>(count) * sizeof(Bf16);
    for (std::size_t done = 0; done < all; done += kPieceBytes) {
      const std::size_t piece = std::min(kPieceBytes, all - done);
      up(bytes + done, piece);
      nccl_->all_reduce(static_cast<Bf16*>(send_.get()),
                        static_cast<std::int64_t>(piece / sizeof(Bf16)), deadline, stream_.get());
      down(send_.get(), piece, "all_reduce", deadline);
      std::memcpy(bytes + done, host_.get(), piece);
    }
  }

 private:
  void up(const std::byte* from, std::size_t bytes) {
    const cuda::DeviceScope scope(device_);
    std::memcpy(host_.get(), from, bytes);
    cuda::check(
        cudaMemcpyAsync(send_.get(), host_.get(), bytes, cudaMemcpyHostToDevice, stream_.get()),
        "copying to the device");
  }
  // Into the pinned memory, when the stream has come there.
  void down(const void* from, std::size_t bytes, const char* what, Deadline deadline) {
    const cuda::DeviceScope scope(device_);
    cuda::check(cudaMemcpyAsync(host_.get(), from, bytes, cudaMemcpyDeviceToHost, stream_.get()),
                "copying from the device");
    nccl_->wait(stream_.get(), what, deadline);
  }

  cuda::PinnedMemory host_;
  cuda::DeviceMemory send_, recv_;
  std::unique_ptr<CUstream_st, cuda::DestroyStream> stream_;
  std::unique_ptr<NcclComm> nccl_;
  const int device_;
  const std::size_t size_;
};

// A communicator by callbacks, which knows processes, threads and counts, over NCCL.
class NcclCommunicator final : public Communicator {
 public:
  // NCCL's watch asks for the peers' lives before they are known: then they are taken for alive.
  using Inner = std::shared_ptr<std::atomic<Communicator*>>;

  NcclCommunicator(std::shared_ptr<Staging> staging, Inner published,
                   std::unique_ptr<Communicator> inner)
      : published_(std::move(published)), inner_(std::move(inner)), staging_(std::move(staging)) {
    *published_ = inner_.get();
  }
  ~NcclCommunicator() override { staging_->stop(); }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view kind() const override { return "nccl"; }
  void all_gather(const void* send, void* recv, std::size_t bytes, Deadline deadline) override {
    inner_->all_gather(send, recv, bytes, deadline);
  }
  void all_reduce(Bf16* data, std::int64_t count, Deadline deadline) override {
    inner_->all_reduce(data, count, deadline);
  }
  std::unique_ptr<SymmetricMemory> allocate_symmetric(std::size_t bytes,
                                                      Deadline deadline) override {
    return inner_->allocate_symmetric(bytes, deadline);
  }
  bool peer_alive(int rank) const override { return inner_->peer_alive(rank); }

 private:
  Inner published_;
  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Staging> staging_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int rank, int size,
                                                     int device, Deadline deadline) {
  const auto published = std::make_shared<std::atomic<Communicator*>>(nullptr);
  const auto peer_alive = [published](int peer) {
    const Communicator* inner = *published;
    return inner == nullptr || inner->peer_alive(peer);
  };
  auto nccl = comm::make_nccl_comm(id, NcclRank{rank, size, device, peer_alive}, deadline);
  const auto staging = std::make_shared<Staging>(std::move(nccl), device, size);
  CommunicatorCallbacks callbacks;
  callbacks.rank = rank;
  callbacks.size = size;
  callbacks.all_gather = [staging](const void* send, void* recv, std::size_t bytes,
                                   Deadline until) {
    staging->all_gather(send, recv, bytes, until);
  };
  callbacks.all_reduce = [staging](Bf16* data, std::int64_t count, Deadline until) {
    staging->all_reduce(data, count, until);
  };
  return std::make_unique<NcclCommunicator>(staging, published,
                                            make_callback_communicator(std::move(callbacks)));
}

std::unique_ptr<Communicator> make_nccl_communicator(const TcpRendezvous& rendezvous, int device,
                                                     Deadline deadline) {
  const auto bootstrap = make_tcp_communicator(rendezvous, deadline);
  return make_nccl_communicator(*bootstrap, device, deadline);
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& bootstrap, int device,
                                                     Deadline deadline) {
  const NcclId id = comm::agree_on_nccl_id(bootstrap, device, deadline);
  std::unique_ptr<Communicator> made;
  std::string failure;
  ErrorCode code = ErrorCode::kUnavailable;
  try {
    made = make_nccl_communicator(id, bootstrap.rank(), bootstrap.size(), device, deadline);
  } catch (const Error& error) {
    failure = error.what();
    code = error.code();
  }
  agree_on_success(bootstrap, "NCCL", failure, code, deadline);
  return made;
}

}  // namespace rowband
