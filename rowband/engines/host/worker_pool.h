// The compute threads of one rank. The calling thread is worker 0.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rowband::host {

class WorkerPool {
 public:
  // Starts threads - 1 threads. Each runs with IEEE arithmetic (no flush to zero), whatever the
  // creating thread has set.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Runs work(worker) once per worker, worker in [0, threads()), and returns when all are done.
  // `work` must not throw. One run at a time.
  void run(const std::function<void(int)>& work);

 private:
  void serve(int worker);

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  const std::function<void(int)>* work_ = nullptr;
  long round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace rowband::host
