/*
 * The four models, with the sizes of models that are in use, for 121 frames of 1280 x 704. The latent video has an
 * eighth of the frames and a 32nd of each side. It has 16 x 20 x 11 positions in base generation (at half the size),
 * four times as many after the spatial upscaler, and nearly eight times as many after the temporal upscaler.
 */
#include "models.h"

#include <math.h>

enum {
    BYTES_PER_WEIGHT = 2,
    PROMPT_TOKENS = 1024,
    BASE_POSITIONS = 16 * 20 * 11,
    WIDE_POSITIONS = 16 * 40 * 22,
    LONG_POSITIONS = 31 * 40 * 22
};

const struct model models[MODEL_COUNT] = {
    /* 22 billion weights, 44 GB: larger than the device. */
    [TRANSFORMER] = {"transformer",
                     0,
                     {{"inputs", 1, 150e6, BASE_POSITIONS},
                      {"block", 48, 452e6, BASE_POSITIONS},
                      {"outputs", 1, 150e6, BASE_POSITIONS}}},
    /* 9.2 billion weights, 18.5 GB: fits if it is alone. A token reads one row of the table of words. */
    [TEXT_ENCODER] = {"text encoder", 0, {{"words", 1, 256128 * 3584.0, 0}, {"layer", 42, 198.2e6, PROMPT_TOKENS}}},
    /*
     * Convolutions: few weights, which are used at every position, and a workspace for the values between the
     * layers.
     */
    [SPATIAL_UPSCALER] = {"spatial upscaler",
                          1.5e9,
                          {{"narrow block", 4, 56e6, BASE_POSITIONS},
                           {"upsampler", 1, 50e6, WIDE_POSITIONS},
                           {"wide block", 4, 56e6, WIDE_POSITIONS}}},
    [TEMPORAL_UPSCALER] = {"temporal upscaler",
                           2e9,
                           {{"short block", 4, 14e6, WIDE_POSITIONS},
                            {"upsampler", 1, 19e6, LONG_POSITIONS},
                            {"long block", 4, 14e6, LONG_POSITIONS}}},
};

uint64_t layer_bytes(const struct layers* layers, double scale) {
    return (uint64_t)fmax(1, round(layers->weights * BYTES_PER_WEIGHT * scale));
}

uint64_t layer_compute_ns(const struct layers* layers, double scale, double operations_per_second) {
    return (uint64_t)(2 * layers->weights * layers->positions * scale / operations_per_second * 1e9);
}

size_t model_block_count(const struct model* model) {
    size_t count = 0;

    for (const struct layers* layers = model->layers; layers->name != NULL; layers++) count += layers->count;
    return count;
}

uint64_t model_bytes(const struct model* model, double scale) {
    uint64_t bytes = 0;

    for (const struct layers* layers = model->layers; layers->name != NULL; layers++)
        bytes += layers->count * layer_bytes(layers, scale);
    return bytes;
}
