/* The device, the stream that computes, and the checks of the device's memory figures. */
#ifndef FOUR_PASS_MACHINE_H
#define FOUR_PASS_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"
#include "options.h"

struct machine {
    sh_device* device;
    sh_stream stream;
    bool virtual_time;     /**< A simulation: it has sizes and a clock, but no contents. */
    bool host_addressable; /**< The host may read views. */
    uint64_t over_budget;  /**< Times that the device held more than the budget. */
    uint64_t over_claimed; /**< Times that headroom plus claims exceeded the budget. A negative headroom counts too. */
};

/** The caller calls machine_close() after a success and after a failure. */
bool machine_open(struct machine* machine, const struct options* options, struct error* error);
void machine_close(struct machine* machine);

bool machine_now(struct machine* machine, uint64_t* out_ns, struct error* error);
bool machine_memory(struct machine* machine, sh_memory_info* out, struct error* error);

/** Checks the memory figures. Called after each layer, and after each change of the figures. */
bool machine_watch(struct machine* machine, struct error* error);

#endif
