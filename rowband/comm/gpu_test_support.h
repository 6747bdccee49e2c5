// Test code: ranks on GPUs in processes of their own. A process that has used CUDA cannot fork
// ranks that use it, so even the GPUs are counted in a child.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "rowband/base/fail.h"
#include "rowband/comm/callbacks.h"
#include "rowband/comm/forked_ranks.h"

namespace rowband::comm {

// GPUs that a process started now would see.
inline int gpus_of_a_child() {
  const pid_t child = fork();
  if (child == 0) {
    int count = 0;
    _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

#define ROWBAND_NEEDS_GPUS_OF_CHILDREN(count)                                       \
  if (const int seen = ::rowband::comm::gpus_of_a_child(); seen < (count)) {        \
    GTEST_SKIP() << "needs " << (count) << " GPU(s), a process here sees " << seen; \
  }

// body(callbacks) in `size` ranks, `per_process` of them in a process each; a rank that hangs is
// ended after two minutes.
inline RankOutcomes run_gpu_ranks(int size, int per_process,
                                  const std::function<void(const CommunicatorCallbacks&)>& body) {
  return run_forked(size, per_process, [&](const CommunicatorCallbacks& callbacks) {
    alarm(120);
    body(callbacks);
  });
}

inline void expect_all_fine(const RankOutcomes& outcomes) {
  for (std::size_t process = 0; process < outcomes.size(); ++process) {
    EXPECT_EQ(outcomes[process], "") << "process " << process;
  }
}

}  // namespace rowband::comm
