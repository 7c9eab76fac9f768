/* What a stage did: a table of the models and of the device. */
#ifndef FOUR_PASS_REPORT_H
#define FOUR_PASS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "loaded.h"

/** Counters at a stage's begin. */
struct report {
    struct machine *machine;
    const struct loaded *loaded; /**< MODEL_COUNT of them. */
    uint64_t began_ns;
    sh_runtime_stats before[MODEL_COUNT];
};

bool report_begin(struct report *report, struct machine *machine, const struct loaded *loaded,
                  struct error *error);

/** Prints the table of what was since report_begin(), and what is. `computed_ns`: of that, what the stream computed. */
bool report_end(const struct report *report, const char *title, uint64_t computed_ns, struct error *error);

/** Bytes in words, of a unit that goes with the budget; in one of a few buffers that take turns. */
const char *in_words(double bytes);

#endif
