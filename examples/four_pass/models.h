/* What each model of the pipeline is made of: sizes and work, nothing of libstagehand. */
#ifndef FOUR_PASS_MODELS_H
#define FOUR_PASS_MODELS_H

#include <stddef.h>
#include <stdint.h>

enum {
    TRANSFORMER,
    TEXT_ENCODER,
    SPATIAL_UPSCALER,
    TEMPORAL_UPSCALER,
    MODEL_COUNT
};

/** Layers that are alike. A layer is what libstagehand moves: a block. */
struct layers {
    const char *name;
    unsigned count;
    double weights;   /**< Of each. */
    double positions; /**< At so many places a pass uses each weight, for two operations; 0: a table. */
};

/** A model, its layers in the order of use. The list ends with one without a name. */
struct model {
    const char *name;
    double workspace_bytes; /**< Device memory beside the weights, which the engine allocates itself. */
    struct layers layers[5];
};

extern const struct model models[MODEL_COUNT];

/** Bytes of a layer in bf16, scaled; at least 1. */
uint64_t layer_bytes(const struct layers *layers, double scale);

/** How long a device that does `operations_per_second` computes with a layer, in nanoseconds, scaled. */
uint64_t layer_compute_ns(const struct layers *layers, double scale, double operations_per_second);

size_t model_block_count(const struct model *model);
uint64_t model_bytes(const struct model *model, double scale);

#endif
