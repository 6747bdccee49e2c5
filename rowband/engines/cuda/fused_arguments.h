// The words that a launch works with beside its operands, and the part of a launch's arguments that
// follows from the call alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "rowband/engines/cuda/kernels.h"
#include "rowband/engines/engine.h"

namespace rowband::cuda {

// Bytes of the flags, call cards and failures in a window, and of the flags alone, which come
// first.
std::int64_t control_bytes(int world, int chunks);
std::int64_t flags_bytes(int world, int chunks);

// Bytes of the counters that no peer touches; device memory, zero at first.
std::size_t counters_bytes(int world, int chunks, int blocks);
// `a` has its world, order and blocks already.
void point_to_counters(FusedArguments& a, void* counters);
// Of every wait, and the graces that follow from it; `a` has its order already.
void set_deadline(FusedArguments& a, std::chrono::nanoseconds deadline);
// As if so many calls had been made, and so many pieces sent; before the first call. On the current
// device.
void preset_counters(void* counters, int blocks, std::int64_t calls);

// "" or why the GPU cannot read the call's operands where they lie.
std::string why_not_aligned(const FusedCall& call);

FusedArguments call_arguments(const FusedCall& call, const CallPlan& plan, int rank, int world);

}  // namespace rowband::cuda
