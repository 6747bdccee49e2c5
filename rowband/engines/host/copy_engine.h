// The copy thread of one rank: it takes finished chunks from a queue, moves them into a peer's part
// of the window and sets the arrival flag. The host's stand-in for a GPU's copy engines.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace rowband::host {

// Moves a chunk's bytes and sets its flag; must not throw and waits for nothing.
using CopyJob = std::function<void()>;

class CopyEngine {
 public:
  CopyEngine();
  // Finishes what is queued, then stops.
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  void enqueue(CopyJob job);
  // Returns when everything queued so far is done. Copies wait for nothing, so this is bounded.
  void drain();
  // Forgets what has not begun.
  void cancel();

 private:
  void serve();

  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<CopyJob> queue_;
  bool busy_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace rowband::host
