/* The options of the command line. */
#ifndef FOUR_PASS_OPTIONS_H
#define FOUR_PASS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"

struct options {
    const char* device;
    double budget_bytes;          /**< Before scaling. */
    double link_bytes_per_second; /**< 0: the speed of the device's own link. */
    double operations_per_second;
    double scale; /**< Factor for sizes and work. */
    unsigned prompts;
    unsigned steps;
    bool verify;
    const char* trace; /**< NULL: no trace. */
    bool help;
};

extern const char usage[];

bool parse_options(int argc, char** argv, struct options* out, struct error* error);

#endif
