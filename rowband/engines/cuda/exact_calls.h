// Test code: exact calls of one rank, queued on a stream of its own without a copy or a wait. The
// operands are filled and the results checked on the GPU.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "rowband/engines/cuda/testing.h"
#include "rowband/engines/cuda/turns.h"

namespace rowband::cuda {

// Zero-filled memory of the engine's device.
template <typename T>
std::shared_ptr<T> device_array(Engine& engine, std::int64_t count) {
  const std::vector<char> zeros(static_cast<std::size_t>(count) * sizeof(T));
  const auto memory = std::const_pointer_cast<void>(engine.upload(zeros.data(), zeros.size()));
  return std::shared_ptr<T>(memory, static_cast<T*>(memory.get()));
}

class TestStream {
 public:
  TestStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  // Collective: for calls of ranks that may share the current device.
  explicit TestStream(Communicator& comm) : TestStream() {
    int device = 0;
    check(cudaGetDevice(&device), "the current device");
    choose_queue(comm, device, stream_, Deadline::after(std::chrono::seconds(60)));
  }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "waiting for the test's stream"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// What the checks of one rank found, all together.
class DeviceFindings {
 public:
  explicit DeviceFindings(Engine& engine)
      : engine_(engine), findings_(device_array<Findings>(engine, 1)) {}
  Findings* get() const { return findings_.get(); }

  // Throws when a check on `stream` has found something.
  void expect_none(const std::string& what, cudaStream_t stream) const {
    Findings found;
    engine_.download(&found, findings_.get(), sizeof found, stream);
    if (found.count == 0) return;
    throw std::runtime_error(what + ": " + std::to_string(found.count) + " wrong elements; call " +
                             std::to_string(found.call) + ", index " + std::to_string(found.index) +
                             " is " + std::to_string(found.got) + ", should be " +
                             std::to_string(found.want));
  }

 private:
  Engine& engine_;
  const std::shared_ptr<Findings> findings_;
};

class ExactCalls {
 public:
  // Collective, so that no rank allocates while a peer's call waits for it: whatever else a test
  // allocates it allocates before. Calls of several ops of one rank belong on one stream: two at
  // once could wait for one another's SMs.
  ExactCalls(Communicator& comm, Engine& engine, GemmAllReduce& op,
             std::shared_ptr<const TestStream> stream = nullptr)
      : comm_(comm),
        op_(op),
        depth_(op.spec().depth),
        stream_(stream != nullptr ? std::move(stream) : std::make_shared<TestStream>(comm)),
        w_(engine, ExactWeight(op.spec().cols, depth_)),
        codes_(device_array<E4m3>(engine, op.spec().max_rows * depth_)),
        findings_(engine) {
    const std::vector<float> ones(
        static_cast<std::size_t>(op.spec().max_rows * scale_blocks(depth_)), 1.0f);
    scales_ = engine.upload(ones.data(), ones.size() * sizeof(float));
    comm.barrier(Deadline::after(std::chrono::seconds(60)));
  }

  cudaStream_t stream() const { return stream_->get(); }
  WeightView w() const { return w_.view(); }

  // The activations' view; fill() puts those of a call there.
  ActivationView x(std::int64_t rows) const {
    return {codes_.get(),         rows, depth_, depth_, static_cast<const float*>(scales_.get()),
            scale_blocks(depth_), 1};
  }
  void fill(std::int64_t rows, std::int64_t call, cudaStream_t on = nullptr) const {
    fill_exact(codes_.get(), rows, depth_, comm_.rank(), call, on != nullptr ? on : stream());
  }
  void check(const Output& y, std::int64_t call) const {
    check_exact(y.data, y.rows, y.cols, depth_, comm_.size(), call, findings_.get(), stream());
  }
  Output run(std::int64_t rows, Bf16* out = nullptr) const {
    return op_.run(x(rows), w(), nullptr, out, nullptr, stream());
  }
  // The three of them. No stream is filled: a launch that waits for room there may hold up a
  // peer's, and is sure to where ranks share a GPU.
  Output queue(std::int64_t rows, std::int64_t call, Bf16* out = nullptr) const {
    if (call % (comm_.size() > gpus() ? 64 : 128) == 0) stream_->wait();
    fill(rows, call);
    const Output y = run(rows, out);
    check(y, call);
    return y;
  }

  // Waits for the stream; throws what went wrong so far.
  void expect_exact() const {
    stream_->wait();
    if (const std::string reason = op_.poison(); !reason.empty()) throw std::runtime_error(reason);
    findings_.expect_none("rank " + std::to_string(comm_.rank()), stream());
  }

 private:
  Communicator& comm_;
  GemmAllReduce& op_;
  const std::int64_t depth_;
  const std::shared_ptr<const TestStream> stream_;
  const OnDevice<ExactWeight> w_;
  const std::shared_ptr<E4m3> codes_;
  std::shared_ptr<const void> scales_;
  const DeviceFindings findings_;
};

}  // namespace rowband::cuda
