/* The device, the stream that computes, and what was seen of the device's memory while they worked. */
#ifndef FOUR_PASS_MACHINE_H
#define FOUR_PASS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "options.h"

struct machine {
    sh_device *device;
    sh_stream stream;
    bool virtual_time;     /**< A simulation: sizes and a clock, no contents. */
    bool host_addressable; /**< The host may read views. */
    uint64_t over_budget;  /**< Times that more was held than the budget. */
    uint64_t
        over_claimed; /**< Times that headroom and what is claimed came to more than the budget: a headroom below zero, too. */
};

/** On success machine_close() ends it; after a failure too. */
bool machine_open(struct machine *machine, const struct options *options, struct error *error);
void machine_close(struct machine *machine);

bool machine_now(struct machine *machine, uint64_t *out_ns, struct error *error);
bool machine_memory(struct machine *machine, sh_memory_info *out, struct error *error);

/** Looks whether the memory figures are as they may be. Called after each layer, and wherever they change. */
bool machine_watch(struct machine *machine, struct error *error);

#endif
