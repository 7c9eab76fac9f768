/* The device, the stream that computes, and the checks of the device's memory figures. */
#include "machine.h"

#include <stdio.h>
#include <string.h>

static const double device_bytes = 24 * 1073741824.0;
static const double sim_link_bytes_per_second = 25e9;

/** Returns true for a device of the backend: "sim" or "sim:0" for the backend "sim". */
static bool is_of(const char* device, const char* backend) {
    const size_t length = strlen(backend);
    return strncmp(device, backend, length) == 0 && (device[length] == '\0' || device[length] == ':');
}

bool machine_open(struct machine* machine, const struct options* options, struct error* error) {
    sh_device_options opened = SH_DEVICE_OPTIONS_INIT;
    sh_device_caps caps = {.struct_size = sizeof(sh_device_caps)};
    const bool sim = is_of(options->device, "sim");
    const double link = options->link_bytes_per_second > 0 ? options->link_bytes_per_second
                        : sim                              ? sim_link_bytes_per_second
                                                           : 0;
    char backend[128] = "";
    char what[128];

    *machine = (struct machine){.stream = SH_STREAM_HOST};
    opened.budget_bytes = (uint64_t)(options->budget_bytes * options->scale);
    if (sim || is_of(options->device, "host")) {
        /* The size of a GPU is fixed, the size of these devices is set here. Growth leaves a little of a device free.
         * For a small device this can be more than the memory beyond the budget, so the host device is twice as large.
         */
        const int length =
            snprintf(backend, sizeof backend, "capacity=%.0f", device_bytes * options->scale * (sim ? 1 : 2));
        if (link > 0) snprintf(backend + length, sizeof backend - (size_t)length, ";bandwidth=%.0f", link);
        opened.backend_options = backend;
    } else if (link > 0) {
        return error_set(error, "--link is for sim and host only: device %s has a link of its own", options->device);
    }
    snprintf(what, sizeof what, "device %s", options->device);
    if (!succeeded(sh_device_open(options->device, &opened, &machine->device), what, error) ||
        !succeeded(sh_device_get_caps(machine->device, &caps), what, error) ||
        !succeeded(sh_stream_create(machine->device, &machine->stream), what, error))
        return false;
    machine->virtual_time = caps.flags & SH_DEVICE_VIRTUAL_TIME;
    machine->host_addressable = caps.flags & SH_DEVICE_HOST_ADDRESSABLE;
    return !options->verify || !machine->virtual_time ||
           error_set(error, "--verify: a simulation has no contents to compare; use --device host");
}

void machine_close(struct machine* machine) {
    if (machine->stream != SH_STREAM_HOST) sh_stream_destroy(machine->device, machine->stream);
    sh_device_close(machine->device);
}

bool machine_now(struct machine* machine, uint64_t* out_ns, struct error* error) {
    return succeeded(sh_device_get_clock(machine->device, out_ns), "the device's clock", error);
}

bool machine_memory(struct machine* machine, sh_memory_info* out, struct error* error) {
    *out = (sh_memory_info){.struct_size = sizeof(sh_memory_info)};
    return succeeded(sh_device_get_memory(machine->device, out), "the device's memory", error);
}

bool machine_watch(struct machine* machine, struct error* error) {
    sh_memory_info memory;

    if (!machine_memory(machine, &memory, error)) return false;
    machine->over_budget += memory.used_bytes > memory.budget_bytes;
    /*
     * The figure is unsigned, so a negative headroom would be near 2^64. A reservation and a guest claim different
     * bytes, but protected bytes can also be reserved.
     */
    machine->over_claimed += memory.headroom_bytes > memory.budget_bytes ||
                             memory.headroom_bytes + memory.reserved_bytes + memory.guest_bytes > memory.budget_bytes;
    return true;
}
