#include "rowband/engines/cuda/copy_queues.h"

#include "rowband/base/cuda/launch_check.h"
#include "rowband/base/fail.h"
#include "rowband/engines/cuda/driver.h"

namespace rowband::cuda {
namespace {

template <typename Function>
Function driver_function(const char* name, unsigned version) {
  void* const found = find_driver_function(name, version);
  if (found == nullptr) {
    fail(ErrorCode::kUnavailable,
         "the driver has no {}: transport copy_engine needs it, direct "
         "does not",
         name);
  }
  return reinterpret_cast<Function>(found);
}

using ValueFunction = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

void check_driver(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) {
    fail(ErrorCode::kUnavailable, "{}: {}", what, driver_error_text(result));
  }
}

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

ValueFunction wait_function() {
  static const auto function = driver_function<ValueFunction>("cuStreamWaitValue32", 12000);
  return function;
}
ValueFunction write_function() {
  static const auto function = driver_function<ValueFunction>("cuStreamWriteValue32", 12000);
  return function;
}

void wait_value(cudaStream_t stream, const std::uint32_t* word, std::uint32_t value) {
  check_driver(wait_function()(stream, address(word), value, CU_STREAM_WAIT_VALUE_EQ),
               "queueing a wait for a chunk");
}

void write_value(cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  check_driver(write_function()(stream, address(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "queueing a word on a chunk");
}

}  // namespace

CopyQueues::CopyQueues(int count, std::size_t bytes_before)
    : begun_(make_event()), bytes_before_(bytes_before) {
  wait_function();
  write_function();
  if (bytes_before_ > 0) {
    before_from_ = allocate_pinned(bytes_before_);
    before_to_ = allocate_device(bytes_before_);
  }
  for (int i = 0; i < count; ++i) {
    queues_.push_back(make_stream());
    done_.push_back(make_event());
  }
}

void CopyQueues::fork(cudaStream_t caller) {
  check(cudaEventRecord(begun_.get(), caller), "recording a call's begin");
  for (const auto& queue : queues_) {
    check(cudaStreamWaitEvent(queue.get(), begun_.get(), 0), "queueing after the caller's stream");
  }
}

void CopyQueues::send(int queue, const ChunkCopy& chunk) {
  const cudaStream_t stream = queues_[static_cast<std::size_t>(queue)].get();
  wait_value(stream, chunk.ready, 1);
  write_value(stream, chunk.ready, 0);
  if (bytes_before_ > 0) {
    check(cudaMemcpyAsync(before_to_.get(), before_from_.get(), bytes_before_, cudaMemcpyDefault,
                          stream),
          "queueing what makes a chunk late");
  }
  if (chunk.bytes > 0) {
    check(cudaMemcpyAsync(chunk.to, chunk.from, chunk.bytes, cudaMemcpyDefault, stream),
          "queueing the copy of a chunk");
  }
  write_value(stream, chunk.copied, 1);
}

void CopyQueues::join(cudaStream_t caller) {
  for (std::size_t i = 0; i < queues_.size(); ++i) {
    check(cudaEventRecord(done_[i].get(), queues_[i].get()), "recording a queue's end");
    check(cudaStreamWaitEvent(caller, done_[i].get(), 0), "queueing after the copies");
  }
}

}  // namespace rowband::cuda
