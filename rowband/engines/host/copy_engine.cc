#include "rowband/engines/host/copy_engine.h"

#include <utility>

namespace rowband::host {

CopyEngine::CopyEngine() : thread_([this] { serve(); }) {}

CopyEngine::~CopyEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CopyEngine::enqueue(CopyJob job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void CopyEngine::drain() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return queue_.empty() && !busy_; });
}

void CopyEngine::cancel() {
  const std::lock_guard lock(mutex_);
  queue_.clear();
}

void CopyEngine::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const CopyJob job = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    job();
    lock.lock();
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

}  // namespace rowband::host
