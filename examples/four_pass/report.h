/* The report of a stage: a table of the models and of the device. */
#ifndef FOUR_PASS_REPORT_H
#define FOUR_PASS_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "loaded.h"

/** The counters at the beginning of a stage. */
struct report {
    struct machine* machine;
    const struct loaded* loaded; /**< MODEL_COUNT entries. */
    uint64_t began_ns;
    sh_runtime_stats before[MODEL_COUNT];
};

bool report_begin(struct report* report, struct machine* machine, const struct loaded* loaded, struct error* error);

/**
 * Prints the table of the changes since report_begin() and of the present sizes. `computed_ns` is the part of the
 * time that the stream computed.
 */
bool report_end(const struct report* report, const char* title, uint64_t computed_ns, struct error* error);

/** Returns the bytes as text with a unit. The text is in one of a few buffers that are used in turn. */
const char* in_words(double bytes);

#endif
