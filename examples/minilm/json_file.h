/* Reading the model's JSON files: the whole file, parsed, with errors that name it. */
#ifndef MINILM_JSON_FILE_H
#define MINILM_JSON_FILE_H

#include <stdbool.h>

#include <cJSON.h>

#include "error.h"

/** Parses `directory`/`name`. On success the caller frees `*out` by cJSON_Delete(). */
bool json_file_read(const char *directory, const char *name, cJSON **out, struct error *error);

#endif
