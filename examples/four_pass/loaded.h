/* A model on the device: its runtime, and a pass over its layers. */
#ifndef FOUR_PASS_LOADED_H
#define FOUR_PASS_LOADED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"
#include "machine.h"
#include "models.h"
#include "options.h"

/** A layer: its block in libstagehand, and the values that identify its weights. */
struct block {
    sh_block id;
    uint64_t bytes;
    uint64_t compute_ns;
    uint64_t seed;       /**< Of the weights. */
    const void* address; /**< Address of the view that is being compared. */
    struct loaded* loaded;
};

struct loaded {
    const struct model* model;
    struct machine* machine;
    sh_runtime* runtime;
    struct block* blocks;
    size_t count;
    void* weights; /**< In host memory. */
    uint64_t bytes;
    uint64_t workspace_bytes;
    uint64_t compute_ns; /**< Of one pass. */
    bool verify;
    void* buffer; /**< For reading a layer back if the host cannot read views. */
    uint64_t compared_bytes;
    uint64_t wrong_layers; /**< Number of layers whose bytes were wrong. */
};

/**
 * Creates the runtime, registers the layers and sets their order. `max_bytes` is the ceiling on its device memory,
 * or 0 for no ceiling. The caller calls loaded_close() after a success and after a failure.
 */
bool loaded_open(struct loaded* loaded, const struct model* model, struct machine* machine,
                 const struct options* options, uint64_t max_bytes, struct error* error);
void loaded_close(struct loaded* loaded);

/** Runs a pass: a step that uses each layer once. Waits for the work. */
bool loaded_run(struct loaded* loaded, struct error* error);

bool loaded_stats(const struct loaded* loaded, sh_runtime_stats* out, struct error* error);

/**
 * Counts the bytes of its layers whose contents are on the device now. It asks each block, and does not use the
 * counters of the runtime.
 */
bool loaded_present(const struct loaded* loaded, uint64_t* out_bytes, struct error* error);

/**
 * Returns true if the model could run alone within its limits. Otherwise the error names `what` and the needed
 * memory.
 */
bool loaded_fits(const struct loaded* loaded, const char* what, struct error* error);

/** Computes the device memory that all its layers need at once, in whole pages. */
bool loaded_whole(const struct loaded* loaded, uint64_t* out_bytes, struct error* error);

#endif
