// Test code: what every communicator must do, whatever its ranks are. Each check is collective and
// throws Error(kCorrupted) saying what was wrong, so that it also works in processes without
// GoogleTest.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "rowband/comm/communicator.h"

namespace rowband::comm::conformance {

// Long enough for a loaded machine, short enough for a test.
Deadline soon();

// Reproducible finite bf16 values of mixed signs and magnitudes.
std::vector<Bf16> random_values(int rank, std::int64_t count, std::uint32_t seed);

// All sizes of message, from nothing to `largest` bytes; every byte is checked.
void check_all_gather(Communicator& comm, std::size_t largest);
// Small integers, so that every order of adds is exact; counts around every slicing boundary and
// `largest`. A sum, not an average (N03).
void check_all_reduce_exact(Communicator& comm, std::int64_t largest);
// fp32 adds in rank order, rounded once, the same bits on every rank.
void check_all_reduce_bits(Communicator& comm, std::int64_t count);
// All ranks hold the same bits after a sum of values that do not add exactly.
void check_all_reduce_same_everywhere(Communicator& comm, std::int64_t count);
// Zeroed, aligned, written by each rank into every part and read back by all, released in different
// orders by different ranks.
void check_symmetric_memory(Communicator& comm, std::size_t bytes);
// R12: all-reduces, gathers and barriers in turn, ranks out of step by random pauses.
void check_interleaving(Communicator& comm, int rounds);
// D01: rank `failing` cannot allocate; everyone gets kOutOfMemory with its reason, and the next
// allocation works.
void check_allocation_failure(Communicator& comm, int failing);
// D03: the last rank passes another count; all get kDisagreement with both, and go on.
void check_count_disagreement(Communicator& comm);
// D01: agreement on success, failure and values.
void check_agreement(Communicator& comm);

// Throws unless `call` throws Error(code) whose text holds every one of `parts`; returns the text.
std::string expect_error(ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& call);

}  // namespace rowband::comm::conformance
