/*
 * Finds the tensors of a safetensors file. The file has 8 bytes with the length of the header, a header in JSON, and
 * the bytes of the tensors.
 */
#ifndef MINILM_SAFETENSORS_H
#define MINILM_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "error.h"

enum { SAFETENSORS_MAX_RANK = 4 };

struct tensor {
    char* name;
    char type[8]; /**< "F32", ... */
    int rank;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    uint64_t file_offset;
    uint64_t bytes;
};

struct safetensors {
    char* path;
    int file;              /**< Open for reading. */
    uint64_t tensor_bytes; /**< Of all tensors. */
    size_t count;
    struct tensor* tensors;
};

/**
 * Opens a file and reads its header. Checks that the bytes of every tensor are within the file. After a success the
 * caller calls safetensors_close().
 */
bool safetensors_open(const char* path, struct safetensors* out, struct error* error);

/** Closes and frees the model. A struct of zeros with a `file` of -1 is allowed. */
void safetensors_close(struct safetensors* model);

/**
 * Finds an F32 tensor of `rows` x `columns`, or of `columns` numbers if `rows` is 0. `*out` stays valid until
 * safetensors_close(). The error for a missing tensor, another type or another shape names the tensor.
 */
bool safetensors_find(const struct safetensors* model, const char* name, uint64_t rows, uint64_t columns,
                      const struct tensor** out, struct error* error);

#endif
