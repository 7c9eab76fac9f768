/* The models of the pipeline: their sizes and their work. Nothing here knows libstagehand. */
#ifndef FOUR_PASS_MODELS_H
#define FOUR_PASS_MODELS_H

#include <stddef.h>
#include <stdint.h>

enum { TRANSFORMER, TEXT_ENCODER, SPATIAL_UPSCALER, TEMPORAL_UPSCALER, MODEL_COUNT };

/** Layers of the same kind. libstagehand moves each layer as one block. */
struct layers {
    const char* name;
    unsigned count;
    double weights;   /**< Of each layer. */
    double positions; /**< At which a pass uses each weight, with two operations each; 0 for a table. */
};

/** A model with its layers in the order of use. The list ends with an entry without a name. */
struct model {
    const char* name;
    double workspace_bytes; /**< Device memory beside the weights, which the engine allocates itself. */
    struct layers layers[5];
};

extern const struct model models[MODEL_COUNT];

/** Returns the bytes of a layer in bf16, scaled, but at least 1. */
uint64_t layer_bytes(const struct layers* layers, double scale);

/** Returns the compute time of a layer in nanoseconds, scaled, on a device with `operations_per_second`. */
uint64_t layer_compute_ns(const struct layers* layers, double scale, double operations_per_second);

size_t model_block_count(const struct model* model);
uint64_t model_bytes(const struct model* model, double scale);

#endif
