/* Prints the results, for people and for programs. */
#include "output.h"

#include <inttypes.h>
#include <stdio.h>

#include <cJSON.h>

static double similarity(const struct results* results, size_t a, size_t b) {
    const float* left = results->vectors + a * results->dimensions;
    const float* right = results->vectors + b * results->dimensions;
    double sum = 0;

    for (size_t i = 0; i < results->dimensions; i++) sum += (double)left[i] * right[i];
    return sum;
}

static double megabytes(uint64_t bytes) { return (double)bytes / 1e6; }

static void print_streamed(const struct weights_report* streamed) {
    printf("streamed: model %.1f MB, budget ", megabytes(streamed->model_bytes));
    if (streamed->budget_bytes == 0)
        printf("none (resident)");
    else
        printf("%.1f MB (%.0f %%)", megabytes(streamed->budget_bytes),
               100 * (double)streamed->budget_bytes / (double)streamed->model_bytes);
    printf(", peak device memory %.1f MB, copied %.1f MB in %" PRIu64 " step%s, %" PRIu64 " hits, %" PRIu64
           " misses, "
           "%.1f ms of waiting\n",
           megabytes(streamed->peak_device_bytes), megabytes(streamed->copied_bytes), streamed->steps,
           streamed->steps == 1 ? "" : "s", streamed->hits, streamed->misses, (double)streamed->stall_ns / 1e6);
}

void output_table(const struct results* results) {
    printf("    ");
    for (size_t column = 0; column < results->count; column++) printf("%6zu", column + 1);
    printf("\n");
    for (size_t row = 0; row < results->count; row++) {
        printf("%3zu ", row + 1);
        for (size_t column = 0; column < results->count; column++) printf("%6.2f", similarity(results, row, column));
        printf("  %s\n", results->sentences[row]);
    }
    printf("\n");
    print_streamed(&results->streamed);
}

static void add_vectors(cJSON* object, const struct results* results) {
    cJSON* vectors = cJSON_AddArrayToObject(object, "embeddings");

    for (size_t row = 0; row < results->count; row++)
        cJSON_AddItemToArray(
            vectors, cJSON_CreateFloatArray(results->vectors + row * results->dimensions, (int)results->dimensions));
}

static void add_similarities(cJSON* object, const struct results* results) {
    cJSON* rows = cJSON_AddArrayToObject(object, "similarities");

    for (size_t a = 0; a < results->count; a++) {
        cJSON* row = cJSON_CreateArray();
        for (size_t b = 0; b < results->count; b++)
            cJSON_AddItemToArray(row, cJSON_CreateNumber(similarity(results, a, b)));
        cJSON_AddItemToArray(rows, row);
    }
}

static void add_streamed(cJSON* object, const struct weights_report* streamed) {
    const struct {
        const char* name;
        uint64_t value;
    } numbers[] = {
        {"model_bytes", streamed->model_bytes},
        {"budget_bytes", streamed->budget_bytes},
        {"peak_device_bytes", streamed->peak_device_bytes},
        {"copied_bytes", streamed->copied_bytes},
        {"steps", streamed->steps},
        {"hits", streamed->hits},
        {"misses", streamed->misses},
    };
    cJSON* json = cJSON_AddObjectToObject(object, "streamed");

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cJSON_AddNumberToObject(json, numbers[i].name, (double)numbers[i].value);
    cJSON_AddNumberToObject(json, "stall_ms", (double)streamed->stall_ns / 1e6);
}

bool output_json(const struct results* results, struct error* error) {
    cJSON* object = cJSON_CreateObject();
    cJSON* sentences = cJSON_AddArrayToObject(object, "sentences");

    for (size_t i = 0; i < results->count; i++)
        cJSON_AddItemToArray(sentences, cJSON_CreateString(results->sentences[i]));
    add_vectors(object, results);
    add_similarities(object, results);
    add_streamed(object, &results->streamed);
    char* text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    if (text == NULL) return error_out_of_memory(error);
    puts(text);
    cJSON_free(text);
    return true;
}
