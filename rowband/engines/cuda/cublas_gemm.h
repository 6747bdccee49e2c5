// cuBLASLt's block-scale matmul (1x128 by 128x128): the peer of this engine's own GEMM, and an
// alternative to it on the base path. The library is loaded when it is first asked for, so a
// program starts where there is none.
#pragma once

#include <cuda_runtime.h>

#include <memory>
#include <string>

#include "rowband/numerics/operands.h"

namespace rowband::cuda {

// "" or why this build or this machine has no cuBLASLt.
std::string why_no_cublas();
// "13.1.0", or "" where why_no_cublas() says why.
std::string cublas_version();

class CublasGemm {
 public:
  // `workspace` is memory of `device`, of kWorkspaceBytes, which the calls use one at a time: a
  // call on another stream than the last one's runs after that one. Where either was captured into
  // a graph, the caller orders them. Throws Error(kUnavailable) with why_no_cublas().
  CublasGemm(int device, std::shared_ptr<void> workspace);
  ~CublasGemm();
  CublasGemm(const CublasGemm&) = delete;
  CublasGemm& operator=(const CublasGemm&) = delete;

  static constexpr std::size_t kWorkspaceBytes = std::size_t{64} << 20;

  // "" or why cuBLASLt does not multiply these: it wants scales of x [K/128][M], of w
  // [N/128][K/128] with rows a multiple of four long, and has no algorithm for some shapes. Of
  // `out` only the alignment counts.
  std::string why_not(const ActivationView& x, const WeightView& w, const Bf16* out = nullptr);

  // out[M, N] = x * w^T, device memory, queued on `stream`. Addresses are multiples of 16. Throws
  // Error(kInvalidArgument) with why_not. The first call of a shape chooses an algorithm.
  void run(const ActivationView& x, const WeightView& w, Bf16* out, cudaStream_t stream);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace rowband::cuda
