/* The command line. */
#ifndef FOUR_PASS_OPTIONS_H
#define FOUR_PASS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"

struct options {
    const char *device;
    double budget_bytes;          /**< Before scaling. */
    double link_bytes_per_second; /**< 0: the device's own. */
    double operations_per_second;
    double scale; /**< Of sizes and work. */
    unsigned prompts;
    unsigned steps;
    bool verify;
    const char *trace; /**< NULL: none. */
    bool help;
};

extern const char usage[];

bool parse_options(int argc, char **argv, struct options *out, struct error *error);

#endif
