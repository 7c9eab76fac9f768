/* The whole engine: turns sentences into vectors. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"
#include "tokenizer.h"

struct engine {
    struct config config;
    struct tokenizer* tokenizer;
    struct weights* weights;
    struct encoder* encoder;
};

bool engine_open(const char* directory, const struct weights_options* options, struct engine** out,
                 struct error* error) {
    char vocabulary[4096];
    struct engine* engine = calloc(1, sizeof *engine);

    if (engine == NULL) return error_out_of_memory(error);
    snprintf(vocabulary, sizeof vocabulary, "%s/vocab.txt", directory);
    bool ok = config_read(directory, &engine->config, error) && tokenizer_open(vocabulary, &engine->tokenizer, error);
    if (ok && tokenizer_size(engine->tokenizer) != (size_t)engine->config.vocabulary)
        ok = error_set(error, "%s: %zu lines, but config.json says vocab_size %d", vocabulary,
                       tokenizer_size(engine->tokenizer), engine->config.vocabulary);
    ok = ok && weights_open(directory, &engine->config, options, &engine->weights, error) &&
         encoder_open(&engine->config, engine->weights, &engine->encoder, error);
    if (!ok) {
        engine_close(engine);
        return false;
    }
    *out = engine;
    return true;
}

void engine_close(struct engine* engine) {
    if (engine == NULL) return;
    encoder_close(engine->encoder);
    weights_close(engine->weights);
    tokenizer_close(engine->tokenizer);
    free(engine);
}

size_t engine_dimensions(const struct engine* engine) { return (size_t)engine->config.hidden; }

/** Embeds the sentences of one step. */
static bool embed_batch(struct engine* engine, const char* const* sentences, size_t count, float* out,
                        struct error* error) {
    struct tokens* tokens = calloc(count, sizeof *tokens);
    bool ok = tokens != NULL || error_out_of_memory(error);

    for (size_t i = 0; ok && i < count; i++)
        ok = tokenizer_encode(engine->tokenizer, sentences[i], strlen(sentences[i]), (size_t)engine->config.max_tokens,
                              &tokens[i], error);
    ok = ok && encoder_embed(engine->encoder, tokens, count, out, error);
    for (size_t i = 0; tokens != NULL && i < count; i++) free(tokens[i].ids);
    free(tokens);
    return ok;
}

bool engine_embed(struct engine* engine, const char* const* sentences, size_t count, size_t batch, float* out,
                  struct error* error) {
    for (size_t begin = 0; begin < count; begin += batch) {
        const size_t rest = count - begin;
        if (!embed_batch(engine, sentences + begin, rest < batch ? rest : batch,
                         out + begin * engine_dimensions(engine), error))
            return false;
    }
    return true;
}

bool engine_read_report(struct engine* engine, struct weights_report* out, struct error* error) {
    return weights_read_report(engine->weights, out, error);
}
