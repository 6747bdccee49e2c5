// A progress bar on stderr. Silent unless stderr is a terminal and `shown` is true.
#pragma once

#include <cstdint>
#include <string>

namespace rowband::cli {

class Progress {
 public:
  Progress(std::int64_t steps, bool shown);
  ~Progress();  // wipes the bar
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void next(const std::string& what);  // the step before is done, `what` begins

 private:
  const std::int64_t steps_;
  const bool shown_;
  std::int64_t begun_ = 0;
};

}  // namespace rowband::cli
