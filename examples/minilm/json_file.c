/* Reads the model's JSON files as a whole and parses them. */
#include "json_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_JSON_BYTES = 16 << 20 };

static char* read_text(FILE* file, const char* path, size_t* out_bytes, struct error* error) {
    char* text = malloc(LONGEST_JSON_BYTES);
    if (text == NULL) {
        error_out_of_memory(error);
        return NULL;
    }
    size_t bytes = fread(text, 1, LONGEST_JSON_BYTES, file);
    if (ferror(file)) {
        error_set(error, "%s: %s", path, strerror(errno));
    } else if (bytes == LONGEST_JSON_BYTES) {
        error_set(error, "%s: larger than %d bytes", path, LONGEST_JSON_BYTES);
    } else {
        *out_bytes = bytes;
        return text;
    }
    free(text);
    return NULL;
}

bool json_file_read(const char* directory, const char* name, cJSON** out, struct error* error) {
    char path[4096];
    size_t bytes = 0;

    if (snprintf(path, sizeof path, "%s/%s", directory, name) >= (int)sizeof path)
        return error_set(error, "%s: the path is too long", directory);
    FILE* file = fopen(path, "rb");
    if (file == NULL) return error_set(error, "%s: %s", path, strerror(errno));
    char* text = read_text(file, path, &bytes, error);
    fclose(file);
    if (text == NULL) return false;

    *out = cJSON_ParseWithLength(text, bytes);
    free(text);
    return *out != NULL || error_set(error, "%s: not valid JSON", path);
}
