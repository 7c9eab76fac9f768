/* The model's sizes and choices, from the JSON files beside its weights. */
#include "config.h"

#include <stddef.h>
#include <string.h>

#include "json_file.h"

enum { LARGEST_SIZE = 1 << 20 };

static bool read_size(const cJSON* object, const char* file, const char* key, int* out, struct error* error) {
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (!cJSON_IsNumber(item) || item->valuedouble < 1 || item->valuedouble > LARGEST_SIZE)
        return error_set(error, "%s: %s must be a number from 1 to %d", file, key, LARGEST_SIZE);
    *out = item->valueint;
    return true;
}

static bool want_text(const cJSON* object, const char* file, const char* key, const char* wanted, struct error* error) {
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, key);

    if (!cJSON_IsString(item) || strcmp(item->valuestring, wanted) != 0)
        return error_set(error, "%s: %s is %s, but this encoder supports only \"%s\"", file, key,
                         cJSON_IsString(item) ? item->valuestring : "not a string", wanted);
    return true;
}

static bool read_transformer(const char* directory, struct config* out, struct error* error) {
    static const char file[] = "config.json";
    const struct {
        const char* key;
        int* value;
    } sizes[] = {
        {"num_hidden_layers", &out->layers},    {"hidden_size", &out->hidden},
        {"num_attention_heads", &out->heads},   {"intermediate_size", &out->intermediate},
        {"vocab_size", &out->vocabulary},       {"max_position_embeddings", &out->positions},
        {"type_vocab_size", &out->token_types},
    };
    cJSON* json = NULL;
    bool ok = json_file_read(directory, file, &json, error);

    for (size_t i = 0; ok && i < sizeof sizes / sizeof sizes[0]; i++)
        ok = read_size(json, file, sizes[i].key, sizes[i].value, error);
    ok = ok && want_text(json, file, "model_type", "bert", error) &&
         want_text(json, file, "hidden_act", "gelu", error) &&
         want_text(json, file, "position_embedding_type", "absolute", error);
    if (ok && out->hidden % out->heads != 0)
        ok = error_set(error, "%s: hidden_size %d is not a multiple of num_attention_heads %d", file, out->hidden,
                       out->heads);
    const cJSON* epsilon = cJSON_GetObjectItemCaseSensitive(json, "layer_norm_eps");
    if (ok && !(cJSON_IsNumber(epsilon) && epsilon->valuedouble >= 0 && epsilon->valuedouble < 1))
        ok = error_set(error, "%s: layer_norm_eps must be a number from 0 to 1", file);
    if (ok) out->layer_norm_epsilon = (float)epsilon->valuedouble;
    cJSON_Delete(json);
    return ok;
}

static bool read_longest_sentence(const char* directory, struct config* out, struct error* error) {
    static const char file[] = "sentence_bert_config.json";
    cJSON* json = NULL;
    bool ok = json_file_read(directory, file, &json, error) &&
              read_size(json, file, "max_seq_length", &out->max_tokens, error);

    if (ok && (out->max_tokens < 2 || out->max_tokens > out->positions))
        ok = error_set(error, "%s: max_seq_length %d is not from 2 to the %d positions of config.json", file,
                       out->max_tokens, out->positions);
    cJSON_Delete(json);
    return ok;
}

/** Checks that the pooling is the mean of all tokens and nothing else. */
static bool check_pooling(const char* directory, struct error* error) {
    static const char file[] = "1_Pooling/config.json";
    static const char mode[] = "pooling_mode_";
    cJSON* json = NULL;
    const cJSON* item = NULL;
    bool ok = json_file_read(directory, file, &json, error);

    if (ok && !cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "pooling_mode_mean_tokens")))
        ok = error_set(error, "%s: pooling_mode_mean_tokens is not true, but this encoder supports no other pooling",
                       file);
    cJSON_ArrayForEach(item, json) {
        if (ok && strncmp(item->string, mode, strlen(mode)) == 0 && cJSON_IsTrue(item) &&
            strcmp(item->string, "pooling_mode_mean_tokens") != 0)
            ok = error_set(error, "%s: %s is true, but this encoder supports only pooling by the mean", file,
                           item->string);
    }
    cJSON_Delete(json);
    return ok;
}

static bool ends_with(const char* text, const char* end) {
    size_t length = strlen(text);
    size_t end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/** Checks that the modules are the ones that the encoder computes, in their order. */
static bool check_modules(const char* directory, struct error* error) {
    static const char file[] = "modules.json";
    static const char* const wanted[] = {".Transformer", ".Pooling", ".Normalize"};
    const int count = sizeof wanted / sizeof wanted[0];
    cJSON* json = NULL;
    bool ok = json_file_read(directory, file, &json, error);

    if (ok && cJSON_GetArraySize(json) != count)
        ok = error_set(error, "%s: the model has %d modules, but this encoder computes %d", file,
                       cJSON_GetArraySize(json), count);
    for (int i = 0; ok && i < count; i++) {
        const cJSON* type = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(json, i), "type");
        if (!cJSON_IsString(type) || !ends_with(type->valuestring, wanted[i]))
            ok = error_set(error, "%s: module %d is not a %s", file, i, wanted[i] + 1);
    }
    cJSON_Delete(json);
    return ok;
}

bool config_read(const char* directory, struct config* out, struct error* error) {
    struct config config = {0};

    if (!read_transformer(directory, &config, error) || !read_longest_sentence(directory, &config, error) ||
        !check_pooling(directory, error) || !check_modules(directory, error))
        return false;
    *out = config;
    return true;
}
