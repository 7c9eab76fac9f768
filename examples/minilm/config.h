/* The model's sizes and choices, from the JSON files beside its weights. */
#ifndef MINILM_CONFIG_H
#define MINILM_CONFIG_H

#include <stdbool.h>

#include "error.h"

struct config {
    int layers;
    int hidden; /**< Numbers in a token's vector. */
    int heads;
    int intermediate; /**< Numbers in the feed-forward network's middle. */
    int vocabulary;   /**< Rows of the word table. */
    int positions;    /**< Rows of the position table. */
    int token_types;  /**< Rows of the token type table. */
    int max_tokens;   /**< Longer sentences are cut to this, [CLS] and [SEP] included. */
    float layer_norm_epsilon;
};

/**
 * Reads config.json, modules.json, 1_Pooling/config.json and sentence_bert_config.json, and refuses what the
 * encoder does not compute.
 */
bool config_read(const char *directory, struct config *out, struct error *error);

#endif
