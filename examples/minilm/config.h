/* The model's sizes and choices, from the JSON files beside its weights. */
#ifndef MINILM_CONFIG_H
#define MINILM_CONFIG_H

#include <stdbool.h>

#include "error.h"

struct config {
    int layers;
    int hidden; /**< Number of values in a token's vector. */
    int heads;
    int intermediate; /**< Number of values in the middle of the feed-forward network. */
    int vocabulary;   /**< Rows of the word table. */
    int positions;    /**< Rows of the position table. */
    int token_types;  /**< Rows of the token type table. */
    int max_tokens;   /**< Longer sentences are cut to this number, including [CLS] and [SEP]. */
    float layer_norm_epsilon;
};

/**
 * Reads config.json, modules.json, 1_Pooling/config.json and sentence_bert_config.json. Refuses settings that the
 * encoder does not support.
 */
bool config_read(const char* directory, struct config* out, struct error* error);

#endif
