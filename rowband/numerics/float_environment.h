// Arithmetic as IEEE 754 has it, whatever the calling thread has set.
#pragma once

namespace rowband {

// From construction to destruction this thread rounds to nearest even and, on x86, neither flushes
// subnormal results to zero (FTZ) nor reads subnormal operands as zero (DAZ); inference servers
// commonly set both. The destructor puts back what the caller had, its exception flags included.
//
// The compiler does not know that arithmetic depends on this object. Operands must therefore be
// read from memory after the construction, and results written to memory before the destruction;
// arithmetic on values in registers may move out of the scope unless they are volatile.
class ScopedFloatEnvironment {
 public:
  ScopedFloatEnvironment();
  ~ScopedFloatEnvironment();
  ScopedFloatEnvironment(const ScopedFloatEnvironment&) = delete;
  ScopedFloatEnvironment& operator=(const ScopedFloatEnvironment&) = delete;

 private:
#if defined(__SSE2__)
  unsigned int saved_mxcsr_;
#else
  int saved_rounding_;
#endif
};

}  // namespace rowband
