/* Reads the model's JSON files as a whole and parses them. Its errors name the file. */
#ifndef MINILM_JSON_FILE_H
#define MINILM_JSON_FILE_H

#include <stdbool.h>

#include <cJSON.h>

#include "error.h"

/** Parses `directory`/`name`. After a success the caller frees `*out` by cJSON_Delete(). */
bool json_file_read(const char* directory, const char* name, cJSON** out, struct error* error);

#endif
