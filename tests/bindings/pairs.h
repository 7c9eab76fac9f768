/* Acquire and release of a resident block, written as in an engine in C and in C++, to measure their cost. */
#ifndef STAGEHAND_TESTS_PAIRS_H
#define STAGEHAND_TESTS_PAIRS_H

#include <stagehand/stagehand.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the sum of the addresses, or 0 if a call failed. */
uint64_t pairs_in_c(sh_runtime* runtime, const sh_block* blocks, uint64_t count, uint64_t pairs);
uint64_t pairs_in_cpp(sh_runtime* runtime, const sh_block* blocks, uint64_t count, uint64_t pairs);

#ifdef __cplusplus
}
#endif

#endif
