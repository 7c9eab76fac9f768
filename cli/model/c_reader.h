/* The reader of safetensors files in C, for the Python package: a part of neither the library nor its interface.
 *
 * No function throws, prints or ends the process. All may be called on any thread, one at a time for one reading. */
#ifndef STAGEHAND_MODEL_C_READER_H
#define STAGEHAND_MODEL_C_READER_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is known of files from their headers. It owns everything that its functions return. */
typedef struct model_reading model_reading;

/* Bytes that no NUL ends. */
typedef struct model_text {
    const char* data;
    uint64_t bytes;
} model_text;

typedef struct model_fact {
    model_text key;
    model_text value;
} model_fact;

typedef struct model_file {
    model_text path; /* as the system takes it */
    /* When the header was read: */
    uint64_t bytes;
    uint64_t device;
    uint64_t inode;
    int64_t changed_ns;      /* its last change, since 1970 */
    const model_fact* facts; /* the metadata, without the description of packed tensors */
    uint64_t fact_count;
} model_file;

typedef struct model_tensor {
    model_text name;       /* UTF-8 */
    model_text type;       /* the format's own word, such as "BF16"; of a packed tensor, what it was */
    const uint64_t* shape; /* in elements, outermost dimension first */
    uint64_t dimensions;
    uint64_t file;       /* index into the files */
    uint64_t offset;     /* in that file */
    uint64_t file_bytes; /* that the tensor has there */
    uint64_t bytes;      /* that the tensor has once it is unpacked */
    int32_t packed;      /* whether `stagehand pack` has packed it */
} model_tensor;

/* Reads the headers of the files that hold one model. Each path is a file, a shard index or a folder, as read_model.h
 * says. Returns NULL if memory runs out. What it returns is given up by model_close(), also after an error. */
model_reading* model_open(const char* const* paths, uint64_t path_count);

/* Why the files were refused, in one line of UTF-8, with the file and the field; NULL if they were not. *out_error is
 * the system's number (errno) if the system refused the file, and 0 otherwise. */
const char* model_error(const model_reading* reading, int32_t* out_error);

/* Both are empty after an error. */
const model_file* model_files(const model_reading* reading, uint64_t* out_count);
const model_tensor* model_tensors(const model_reading* reading, uint64_t* out_count);

void model_close(model_reading* reading);

/* Maps the whole file of an open descriptor, which it does not keep: a private mapping, for which the system reserves
 * no memory. Returns NULL if the system refuses, and *out_error is its number then. */
void* model_map(int32_t descriptor, uint64_t bytes, int32_t writable, int32_t* out_error);
void model_unmap(void* mapping, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
