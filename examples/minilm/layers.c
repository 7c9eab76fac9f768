/* The arithmetic of a BERT layer, on the host, in float. */
#include "layers.h"

#include <math.h>
#include <stdlib.h>

#include <cblas.h>

bool scratch_allocate(const struct config* config, struct scratch* out, struct error* error) {
    const size_t tokens = (size_t)config->max_tokens;
    const size_t hidden = (size_t)config->hidden;
    struct scratch scratch = {
        .query = malloc(tokens * hidden * sizeof(float)),
        .key = malloc(tokens * hidden * sizeof(float)),
        .value = malloc(tokens * hidden * sizeof(float)),
        .mixed = malloc(tokens * hidden * sizeof(float)),
        .scores = malloc(tokens * tokens * sizeof(float)),
        .middle = malloc(tokens * (size_t)config->intermediate * sizeof(float)),
    };

    if (scratch.query == NULL || scratch.key == NULL || scratch.value == NULL || scratch.mixed == NULL ||
        scratch.scores == NULL || scratch.middle == NULL) {
        scratch_free(&scratch);
        return error_out_of_memory(error);
    }
    openblas_set_num_threads(1);
    *out = scratch;
    return true;
}

void scratch_free(struct scratch* scratch) {
    free(scratch->query);
    free(scratch->key);
    free(scratch->value);
    free(scratch->mixed);
    free(scratch->scores);
    free(scratch->middle);
    *scratch = (struct scratch){0};
}

/** to = from * weight' + bias, for each row. */
static void linear(const float* from, size_t rows, int inputs, const float* weight, const float* bias, int outputs,
                   float* to) {
    for (size_t row = 0; row < rows; row++) cblas_scopy(outputs, bias, 1, to + row * (size_t)outputs, 1);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, outputs, inputs, 1.0F, from, inputs, weight, inputs,
                1.0F, to, outputs);
}

static void gelu(float* values, size_t count) {
    const float root_of_half = 0.70710678118654752440F;

    for (size_t i = 0; i < count; i++) values[i] = 0.5F * values[i] * (1.0F + erff(values[i] * root_of_half));
}

static void softmax(float* row, size_t count) {
    float largest = row[0];
    float sum = 0.0F;

    for (size_t i = 1; i < count; i++) largest = fmaxf(largest, row[i]);
    for (size_t i = 0; i < count; i++) sum += row[i] = expf(row[i] - largest);
    for (size_t i = 0; i < count; i++) row[i] /= sum;
}

void layer_norm(const struct config* config, const float* weight, const float* bias, float* rows, size_t count) {
    const size_t hidden = (size_t)config->hidden;

    for (float* row = rows; row < rows + count * hidden; row += hidden) {
        double mean = 0;
        double variance = 0;
        for (size_t i = 0; i < hidden; i++) mean += row[i];
        mean /= (double)hidden;
        for (size_t i = 0; i < hidden; i++) variance += (row[i] - mean) * (row[i] - mean);
        variance /= (double)hidden;
        const double scale = 1 / sqrt(variance + (double)config->layer_norm_epsilon);
        for (size_t i = 0; i < hidden; i++) row[i] = (float)((row[i] - mean) * scale) * weight[i] + bias[i];
    }
}

/**
 * Self-attention: each head's part of a row mixes the values of all tokens. The weights of the mix tell how well the
 * query of the row matches the keys.
 */
static void attend(const struct config* config, const float* const weights[LAYER_TENSORS], struct scratch* scratch,
                   const float* rows, size_t tokens) {
    const int hidden = config->hidden;
    const int head_size = hidden / config->heads;
    const int count = (int)tokens;
    const float scale = 1.0F / sqrtf((float)head_size);

    linear(rows, tokens, hidden, weights[QUERY_WEIGHT], weights[QUERY_BIAS], hidden, scratch->query);
    linear(rows, tokens, hidden, weights[KEY_WEIGHT], weights[KEY_BIAS], hidden, scratch->key);
    linear(rows, tokens, hidden, weights[VALUE_WEIGHT], weights[VALUE_BIAS], hidden, scratch->value);
    for (int head = 0; head < config->heads; head++) {
        const int begin = head * head_size;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, count, count, head_size, scale, scratch->query + begin,
                    hidden, scratch->key + begin, hidden, 0.0F, scratch->scores, count);
        for (size_t row = 0; row < tokens; row++) softmax(scratch->scores + row * tokens, tokens);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, count, head_size, count, 1.0F, scratch->scores, count,
                    scratch->value + begin, hidden, 0.0F, scratch->mixed + begin, hidden);
    }
}

static void add(float* to, const float* from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

void layer_forward(const struct config* config, const float* const weights[LAYER_TENSORS], struct scratch* scratch,
                   float* rows, size_t tokens) {
    const int hidden = config->hidden;
    const int middle = config->intermediate;
    const size_t numbers = tokens * (size_t)hidden;
    float* out = scratch->query;

    attend(config, weights, scratch, rows, tokens);
    linear(scratch->mixed, tokens, hidden, weights[ATTENTION_WEIGHT], weights[ATTENTION_BIAS], hidden, out);
    add(rows, out, numbers);
    layer_norm(config, weights[ATTENTION_NORM_WEIGHT], weights[ATTENTION_NORM_BIAS], rows, tokens);

    linear(rows, tokens, hidden, weights[INTERMEDIATE_WEIGHT], weights[INTERMEDIATE_BIAS], middle, scratch->middle);
    gelu(scratch->middle, tokens * (size_t)middle);
    linear(scratch->middle, tokens, middle, weights[OUTPUT_WEIGHT], weights[OUTPUT_BIAS], hidden, out);
    add(rows, out, numbers);
    layer_norm(config, weights[OUTPUT_NORM_WEIGHT], weights[OUTPUT_NORM_BIAS], rows, tokens);
}
