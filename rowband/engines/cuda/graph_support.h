// Test code: what a stream captured, and memory that no plain allocation gave.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <functional>
#include <stdexcept>

#include "rowband/base/cuda/launch_check.h"
#include "rowband/engines/cuda/driver.h"

namespace rowband::cuda {

// What `queue` queues on the stream, captured.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& queue) : stream_(stream) {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    queue();
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "ending a capture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "instantiating the graph");
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void replay() const { check(cudaGraphLaunch(graph_, stream_), "launching the graph"); }

 private:
  const cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

// Memory as allocators with expandable segments make it: an address range, mapped afterwards.
class MappedMemory {
 public:
  MappedMemory(int device, std::size_t bytes) {
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = device;
    std::size_t step = 0;
    call<decltype(&cuMemGetAllocationGranularity)>("cuMemGetAllocationGranularity")(
        &step, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    bytes_ = (bytes + step - 1) / step * step;
    CUmemGenericAllocationHandle handle = 0;
    expect(call<decltype(&cuMemAddressReserve)>("cuMemAddressReserve")(&address_, bytes_, 0, 0, 0));
    expect(call<decltype(&cuMemCreate)>("cuMemCreate")(&handle, bytes_, &kind, 0));
    expect(call<decltype(&cuMemMap)>("cuMemMap")(address_, bytes_, 0, handle, 0));
    expect(call<decltype(&cuMemRelease)>("cuMemRelease")(handle));
    const CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    expect(call<decltype(&cuMemSetAccess)>("cuMemSetAccess")(address_, bytes_, &access, 1));
  }
  ~MappedMemory() {
    call<decltype(&cuMemUnmap)>("cuMemUnmap")(address_, bytes_);
    call<decltype(&cuMemAddressFree)>("cuMemAddressFree")(address_, bytes_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(address_);
  }

 private:
  template <typename Function>
  static Function call(const char* name) {
    return reinterpret_cast<Function>(find_driver_function(name, 12000));
  }
  static void expect(CUresult result) {
    if (result != CUDA_SUCCESS) throw std::runtime_error("mapping memory failed");
  }
  CUdeviceptr address_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace rowband::cuda
