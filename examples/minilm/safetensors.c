/* Reads the header of a safetensors file. */
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cJSON.h>

enum { LENGTH_BYTES = 8, LONGEST_HEADER_BYTES = 100000000 };

/** Reads exactly `bytes` bytes. Fails if the file ends before. */
static bool read_range(const struct safetensors* model, void* buffer, uint64_t bytes, uint64_t offset,
                       struct error* error) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(model->file, (char*)buffer + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set(error, "%s: %s", model->path, strerror(errno));
        if (got == 0)
            return error_set(error, "%s: ends at byte %" PRIu64 ", inside its header", model->path, offset + done);
        done += (uint64_t)got;
    }
    return true;
}

/** Reads a whole number that a double holds exactly. */
static bool read_count(const cJSON* item, uint64_t* out) {
    const double limit = 9007199254740992.0;

    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > limit) return false;
    *out = (uint64_t)item->valuedouble;
    return (double)*out == item->valuedouble;
}

static bool read_shape(const cJSON* shape, struct tensor* tensor) {
    const cJSON* item = NULL;

    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > SAFETENSORS_MAX_RANK) return false;
    cJSON_ArrayForEach(item, shape) {
        if (!read_count(item, &tensor->shape[tensor->rank++])) return false;
    }
    return true;
}

static bool read_tensor(const struct safetensors* model, const cJSON* item, uint64_t data_offset, uint64_t data_bytes,
                        struct tensor* tensor, struct error* error) {
    const cJSON* type = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON* offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    uint64_t begin = 0;
    uint64_t end = 0;

    if (!cJSON_IsString(type) || strlen(type->valuestring) >= sizeof tensor->type)
        return error_set(error, "%s: tensor %s: dtype is unknown", model->path, item->string);
    if (!read_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), tensor))
        return error_set(error, "%s: tensor %s: shape is not a list of at most %d sizes", model->path, item->string,
                         SAFETENSORS_MAX_RANK);
    if (cJSON_GetArraySize(offsets) != 2 || !read_count(cJSON_GetArrayItem(offsets, 0), &begin) ||
        !read_count(cJSON_GetArrayItem(offsets, 1), &end) || begin > end)
        return error_set(error, "%s: tensor %s: data_offsets is not a list of a begin and an end", model->path,
                         item->string);
    if (end > data_bytes)
        return error_set(error, "%s: tensor %s ends %" PRIu64 " bytes after the end of the file", model->path,
                         item->string, end - data_bytes);
    strcpy(tensor->type, type->valuestring);
    tensor->file_offset = data_offset + begin;
    tensor->bytes = end - begin;
    tensor->name = strdup(item->string);
    return tensor->name != NULL || error_out_of_memory(error);
}

static bool read_tensors(struct safetensors* model, const cJSON* header, uint64_t data_offset, uint64_t data_bytes,
                         struct error* error) {
    const cJSON* item = NULL;

    if (!cJSON_IsObject(header)) return error_set(error, "%s: the header is not a JSON object", model->path);
    model->tensors = calloc((size_t)cJSON_GetArraySize(header) + 1, sizeof *model->tensors);
    if (model->tensors == NULL) return error_out_of_memory(error);
    cJSON_ArrayForEach(item, header) {
        if (strcmp(item->string, "__metadata__") == 0) continue;
        if (!read_tensor(model, item, data_offset, data_bytes, &model->tensors[model->count], error)) return false;
        model->tensor_bytes += model->tensors[model->count].bytes;
        model->count++;
    }
    return true;
}

static bool read_header(struct safetensors* model, uint64_t file_bytes, struct error* error) {
    unsigned char prefix[LENGTH_BYTES];
    uint64_t header_bytes = 0;

    if (!read_range(model, prefix, sizeof prefix, 0, error)) return false;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) header_bytes = header_bytes << 8 | prefix[i];
    if (header_bytes > LONGEST_HEADER_BYTES || header_bytes > file_bytes - LENGTH_BYTES)
        return error_set(error, "%s: the header's length of %" PRIu64 " bytes is not possible in a file of %" PRIu64,
                         model->path, header_bytes, file_bytes);

    char* text = malloc(header_bytes + 1);
    if (text == NULL) return error_out_of_memory(error);
    bool ok = read_range(model, text, header_bytes, LENGTH_BYTES, error);
    cJSON* header = ok ? cJSON_ParseWithLength(text, header_bytes) : NULL;
    free(text);
    if (ok && header == NULL) ok = error_set(error, "%s: the header is not valid JSON", model->path);
    const uint64_t data_offset = LENGTH_BYTES + header_bytes;
    ok = ok && read_tensors(model, header, data_offset, file_bytes - data_offset, error);
    cJSON_Delete(header);
    return ok;
}

bool safetensors_open(const char* path, struct safetensors* out, struct error* error) {
    struct safetensors model = {.file = open(path, O_RDONLY | O_CLOEXEC)};
    struct stat status;

    if (model.file < 0 || fstat(model.file, &status) != 0) {
        error_set(error, "%s: %s", path, strerror(errno));
        safetensors_close(&model);
        return false;
    }
    model.path = strdup(path);
    bool ok = model.path != NULL || error_out_of_memory(error);
    if (ok && !S_ISREG(status.st_mode)) ok = error_set(error, "%s: not a regular file", path);
    if (!ok || !read_header(&model, (uint64_t)status.st_size, error)) {
        safetensors_close(&model);
        return false;
    }
    *out = model;
    return true;
}

void safetensors_close(struct safetensors* model) {
    for (size_t i = 0; model->tensors != NULL && i < model->count; i++) free(model->tensors[i].name);
    free(model->tensors);
    free(model->path);
    if (model->file >= 0) close(model->file);
    *model = (struct safetensors){.file = -1};
}

static void write_shape(const struct tensor* tensor, char* text, size_t capacity) {
    size_t length = (size_t)snprintf(text, capacity, "%s [", tensor->type);

    for (int i = 0; i < tensor->rank && length < capacity; i++)
        length +=
            (size_t)snprintf(text + length, capacity - length, "%s%" PRIu64, i == 0 ? "" : ", ", tensor->shape[i]);
    if (length < capacity) snprintf(text + length, capacity - length, "]");
}

bool safetensors_find(const struct safetensors* model, const char* name, uint64_t rows, uint64_t columns,
                      const struct tensor** out, struct error* error) {
    struct tensor wanted = {.type = "F32", .rank = rows == 0 ? 1 : 2, .shape = {rows == 0 ? columns : rows, columns}};
    const struct tensor* found = NULL;
    char found_shape[128];
    char wanted_shape[128];

    for (size_t i = 0; i < model->count && found == NULL; i++)
        if (strcmp(model->tensors[i].name, name) == 0) found = &model->tensors[i];
    if (found == NULL) return error_set(error, "%s: no tensor %s", model->path, name);

    write_shape(found, found_shape, sizeof found_shape);
    write_shape(&wanted, wanted_shape, sizeof wanted_shape);
    if (strcmp(found_shape, wanted_shape) != 0)
        return error_set(error, "%s: tensor %s is %s, expected %s", model->path, name, found_shape, wanted_shape);
    if (found->bytes != (rows == 0 ? 1 : rows) * columns * sizeof(float))
        return error_set(error, "%s: tensor %s, %s, has %" PRIu64 " bytes", model->path, name, found_shape,
                         found->bytes);
    *out = found;
    return true;
}
