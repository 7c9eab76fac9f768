/* The four stages: text encoding, base generation, spatial and temporal upscaling. */
#ifndef FOUR_PASS_PIPELINE_H
#define FOUR_PASS_PIPELINE_H

#include <stdbool.h>

#include "error.h"
#include "loaded.h"
#include "machine.h"
#include "options.h"
#include "promises.h"

struct pipeline {
    const struct options* options;
    struct machine machine;
    struct loaded models[MODEL_COUNT];
    struct promises promises;
    sh_scope* reservation;   /**< The transformer's. */
    uint64_t given_up_bytes; /**< Bytes that the transformer had given up when it was reserved. */
    uint64_t present_bytes;  /**< Bytes of the transformer's weights on the device at the end of base generation. */
};

/** Opens the device and puts the models on it. The caller calls pipeline_close() in any case. */
bool pipeline_open(struct pipeline* pipeline, const struct options* options, struct error* error);
void pipeline_close(struct pipeline* pipeline);

/** Makes a video. Prints a table for each stage, and records the promises. */
bool pipeline_run(struct pipeline* pipeline, struct error* error);

#endif
