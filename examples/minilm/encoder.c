/* The encoder: turns the tokens of each sentence into one vector of length 1. */
#include "encoder.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "layers.h"

struct encoder {
    struct config config;
    struct weights* weights;
    struct scratch scratch;
};

/** The sentences of one step. */
struct batch {
    const struct tokens* sentences;
    size_t count;
    size_t tokens; /**< Of all sentences. */
    int32_t* ids;  /**< Of all tokens. */
    float* rows;   /**< The vectors of the tokens: tokens x hidden. */
};

bool encoder_open(const struct config* config, struct weights* weights, struct encoder** out, struct error* error) {
    struct encoder* encoder = calloc(1, sizeof *encoder);

    if (encoder == NULL) return error_out_of_memory(error);
    encoder->config = *config;
    encoder->weights = weights;
    if (!scratch_allocate(config, &encoder->scratch, error)) {
        encoder_close(encoder);
        return false;
    }
    *out = encoder;
    return true;
}

void encoder_close(struct encoder* encoder) {
    if (encoder == NULL) return;
    scratch_free(&encoder->scratch);
    free(encoder);
}

/** Adds each token's position and type to its word vector, and normalises the result. */
static bool embed_tokens(struct encoder* encoder, struct batch* batch, struct error* error) {
    const size_t hidden = (size_t)encoder->config.hidden;
    const float* tables[EMBEDDING_TENSORS];
    float* row = batch->rows;

    if (!weights_gather_words(encoder->weights, batch->ids, batch->tokens, batch->rows, error) ||
        !weights_acquire_embeddings(encoder->weights, tables, error))
        return false;
    for (size_t sentence = 0; sentence < batch->count; sentence++) {
        for (size_t position = 0; position < batch->sentences[sentence].count; position++, row += hidden) {
            const float* at = tables[POSITION_TABLE] + position * hidden;
            for (size_t i = 0; i < hidden; i++) row[i] = row[i] + tables[TOKEN_TYPE_TABLE][i] + at[i];
        }
    }
    layer_norm(&encoder->config, tables[EMBEDDING_NORM_WEIGHT], tables[EMBEDDING_NORM_BIAS], batch->rows,
               batch->tokens);
    return weights_release_embeddings(encoder->weights, error);
}

static bool apply_layer(struct encoder* encoder, int layer, struct batch* batch, struct error* error) {
    const float* tensors[LAYER_TENSORS];
    float* rows = batch->rows;

    if (!weights_acquire_layer(encoder->weights, layer, tensors, error)) return false;
    for (size_t i = 0; i < batch->count; i++) {
        layer_forward(&encoder->config, tensors, &encoder->scratch, rows, batch->sentences[i].count);
        rows += batch->sentences[i].count * (size_t)encoder->config.hidden;
    }
    return weights_release_layer(encoder->weights, layer, error);
}

/** Computes the mean of the tokens' vectors, and divides it by its length. */
static void pool(const struct config* config, const float* rows, size_t tokens, float* out) {
    const size_t hidden = (size_t)config->hidden;
    double squares = 0;

    for (size_t i = 0; i < hidden; i++) {
        double sum = 0;
        for (size_t token = 0; token < tokens; token++) sum += rows[token * hidden + i];
        out[i] = (float)(sum / (double)tokens);
        squares += (double)out[i] * out[i];
    }
    const double length = fmax(sqrt(squares), 1e-12);
    for (size_t i = 0; i < hidden; i++) out[i] = (float)(out[i] / length);
}

static bool run_step(struct encoder* encoder, struct batch* batch, struct error* error) {
    struct error end_error;

    if (!weights_step_begin(encoder->weights, error)) return false;
    bool ok = embed_tokens(encoder, batch, error);
    for (int layer = 0; ok && layer < encoder->config.layers; layer++) ok = apply_layer(encoder, layer, batch, error);
    /* The step ends after an error too, and the first error is reported. */
    if (!weights_step_end(encoder->weights, &end_error) && ok) {
        *error = end_error;
        ok = false;
    }
    return ok;
}

bool encoder_embed(struct encoder* encoder, const struct tokens* sentences, size_t count, float* out,
                   struct error* error) {
    const size_t hidden = (size_t)encoder->config.hidden;
    struct batch batch = {.sentences = sentences, .count = count};

    if (count == 0) return true;
    for (size_t i = 0; i < count; i++) {
        if (sentences[i].count == 0 || sentences[i].count > (size_t)encoder->config.max_tokens)
            return error_set(error, "sentence %zu has %zu tokens, not 1 to %d", i, sentences[i].count,
                             encoder->config.max_tokens);
        batch.tokens += sentences[i].count;
    }
    batch.ids = malloc(batch.tokens * sizeof *batch.ids);
    batch.rows = malloc(batch.tokens * hidden * sizeof *batch.rows);
    bool ok = (batch.ids != NULL && batch.rows != NULL) || error_out_of_memory(error);
    for (size_t i = 0, at = 0; ok && i < count; at += sentences[i].count, i++)
        memcpy(batch.ids + at, sentences[i].ids, sentences[i].count * sizeof *batch.ids);

    ok = ok && run_step(encoder, &batch, error);
    const float* rows = batch.rows;
    for (size_t i = 0; ok && i < count; rows += sentences[i].count * hidden, i++)
        pool(&encoder->config, rows, sentences[i].count, out + i * hidden);
    free(batch.ids);
    free(batch.rows);
    return ok;
}
