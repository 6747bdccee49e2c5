// Memory of an engine that a layer holds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rowband/engines/engine.h"

namespace rowband {

// Elements of unknown value. Growing does not keep them. On a GPU engine what was outgrown lives on
// beside it, since queued calls and captured graphs may work on it.
template <typename T>
class EngineBuffer {
 public:
  // Makes room for `count` elements; allocates only when there is less. Throws Error(kOutOfMemory).
  void reserve(Engine& engine, std::int64_t count) {
    if (count <= size_) return;
    auto larger = engine.allocate(static_cast<std::size_t>(count) * sizeof(T));
    if (memory_ && !engine.on_host()) outgrown_.push_back(std::move(memory_));
    memory_ = std::move(larger);
    size_ = count;
  }
  T* data() const { return static_cast<T*>(memory_.get()); }
  std::int64_t size() const { return size_; }

 private:
  std::shared_ptr<void> memory_;
  std::int64_t size_ = 0;
  std::vector<std::shared_ptr<void>> outgrown_;
};

}  // namespace rowband
