// Include in every source whose bits depend on IEEE arithmetic; it refuses compilers' fast-math
// modes.
//
// Such a mode compiles NaN checks away, replaces x / scale by x * (1 / scale) and reorders sums, so
// that a code, a scale or a row would differ between two builds of the same library, and ranks
// would no longer agree to the bit.
#pragma once

#include <cfloat>

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__RECIPROCAL_MATH__) || defined(__ASSOCIATIVE_MATH__)
#error \
    "rowband needs IEEE arithmetic: compile without -ffast-math and the flags it implies (-O3 is fine)"
#endif

// Wider intermediates (x87) would round a quotient twice.
#if FLT_EVAL_METHOD != 0
#error "rowband needs float arithmetic in float: compile with SSE2 arithmetic (-mfpmath=sse)"
#endif
