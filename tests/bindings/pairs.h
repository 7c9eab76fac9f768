/* Acquire and release of a resident block, written as an engine would in C and in C++, for who counts what they cost. */
#ifndef STAGEHAND_TESTS_PAIRS_H
#define STAGEHAND_TESTS_PAIRS_H

#include <stagehand/stagehand.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The sum of the addresses; 0: a call failed. */
uint64_t pairs_in_c(sh_runtime *runtime, const sh_block *blocks, uint64_t count, uint64_t pairs);
uint64_t pairs_in_cpp(sh_runtime *runtime, const sh_block *blocks, uint64_t count, uint64_t pairs);

#ifdef __cplusplus
}
#endif

#endif
