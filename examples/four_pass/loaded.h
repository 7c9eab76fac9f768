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

/** A layer, as libstagehand knows it and as it can be recognised. */
struct block {
    sh_block id;
    uint64_t bytes;
    uint64_t compute_ns;
    uint64_t seed;       /**< Of its weights. */
    const void *address; /**< Of the view that is being compared. */
    struct loaded *loaded;
};

struct loaded {
    const struct model *model;
    struct machine *machine;
    sh_runtime *runtime;
    struct block *blocks;
    size_t count;
    void *weights; /**< On the host. */
    uint64_t bytes;
    uint64_t workspace_bytes;
    uint64_t compute_ns; /**< Of a pass. */
    bool verify;
    void *buffer; /**< For reading a layer back, where the host cannot read views. */
    uint64_t compared_bytes;
    uint64_t wrong_layers; /**< Whose bytes were not as they should be. */
};

/**
 * Creates the runtime, registers the layers and tells their order. `max_bytes`: ceiling on its device memory, 0: none. On success
 * and after a failure loaded_close() ends it.
 */
bool loaded_open(struct loaded *loaded, const struct model *model, struct machine *machine,
                 const struct options *options, uint64_t max_bytes, struct error *error);
void loaded_close(struct loaded *loaded);

/** A pass: a step that uses each layer once, and waits for the work. */
bool loaded_run(struct loaded *loaded, struct error *error);

bool loaded_stats(const struct loaded *loaded, sh_runtime_stats *out, struct error *error);

/** Bytes of its layers whose contents are on the device now, block by block, whatever the runtime's own counters say. */
bool loaded_present(const struct loaded *loaded, uint64_t *out_bytes, struct error *error);

/** Whether it could run alone, with what it may have; else the error says `what`, and how much it needs. */
bool loaded_fits(const struct loaded *loaded, const char *what, struct error *error);

/** Device memory that all of its layers need at once, in whole pages. */
bool loaded_whole(const struct loaded *loaded, uint64_t *out_bytes, struct error *error);

#endif
