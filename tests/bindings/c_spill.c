/*
 * A training engine in C that knows spill.h and activations.h alone: it plans from sizes and times, carries the plan
 * out over several steps, and makes the mistakes that the headers name. Device memory of an engine on the host's
 * backend is any memory of the process.
 */
#include <stagehand/activations.h>
#include <stagehand/device.h>
#include <stagehand/spill.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { kLayers = 12, kBytes = 1 << 16, kMs = 1000000 };

static uint64_t address_of(const void* memory) { return (uint64_t)(uintptr_t)memory; }

/* What layer `layer` saves in step `step`. */
static unsigned char value_of(int step, int layer) { return (unsigned char)(1 + 31 * step + layer); }

static int is_all(const unsigned char* memory, unsigned char value) {
    for (int i = 0; i < kBytes; i++)
        if (memory[i] != value) return 0;
    return 1;
}

/* Each layer takes a millisecond, forward and then backward. Every third storage is cheap. */
static void plan_step(uint32_t fates[kLayers]) {
    sh_activation activations[kLayers];
    static const uint32_t before[kLayers] = {0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    for (uint64_t layer = 0; layer < kLayers; layer++) {
        sh_activation* activation = &activations[layer];
        sh_activation_init(activation);
        activation->bytes = kBytes;
        activation->produced_ns = layer * kMs;
        activation->first_use_ns = (2 * kLayers - 1 - layer) * kMs;
        activation->last_use_ns = activation->first_use_ns + kMs;
        if (layer % 3 == 1) {
            activation->flags = SH_ACTIVATION_CHEAP;
            activation->recompute_ns = kMs / 100;
            activation->inputs = &before[layer];
            activation->input_count = 1;
        }
    }
    sh_training_step step;
    sh_training_step_init(&step);
    step.activations = activations;
    step.activation_count = kLayers;
    step.forward_end_ns = kLayers * (uint64_t)kMs;
    step.end_ns = 2 * step.forward_end_ns;
    step.to_host_bytes_per_second = step.to_device_bytes_per_second = (uint64_t)kBytes * 500; /* half a layer */
    step.target_peak_bytes = 5 * kBytes;
    sh_activation_plan plan;
    plan.struct_size = sizeof plan;
    SUCCEEDS(sh_plan_activations(&step, fates, &plan));
    CHECK(plan.meets_target == 1 && plan.peak_bytes <= 5 * kBytes && plan.plain_peak_bytes == kLayers * kBytes);
    CHECK(plan.spilled_bytes > 0 && plan.recomputed_bytes > 0 && plan.kept_bytes > 0);
    CHECK(plan.least_step_ns <= plan.step_ns);

    sh_activation_plan simulated;
    simulated.struct_size = sizeof simulated;
    sh_memory_point points[8 * kLayers];
    uint64_t count = 0, highest = 0;
    for (int i = 0; i < 8 * kLayers; i++) sh_memory_point_init(&points[i]);
    SUCCEEDS(sh_simulate_activations(&step, fates, &simulated, points, 8 * kLayers, &count));
    CHECK(count > 0 && count <= 8 * kLayers && simulated.step_ns == plan.step_ns);
    for (uint64_t i = 0; i < count && i < 8 * kLayers; i++)
        if (points[i].bytes > highest) highest = points[i].bytes;
    CHECK(highest == plan.peak_bytes);
}

static sh_status save(sh_spiller* spiller, unsigned char* memory, uint64_t key, uint32_t flags, sh_ticket* ticket) {
    const int64_t size = kBytes;
    sh_saved_tensor tensor;
    sh_saved_tensor_init(&tensor);
    tensor.element_bytes = 1;
    tensor.address = address_of(memory);
    tensor.dimensions = 1;
    tensor.sizes = &size;
    tensor.storage_key = key;
    tensor.used_bytes = 1;
    return sh_spill(spiller, &tensor, SH_STREAM_HOST, flags, ticket);
}

/* A layer of the engine: the memory of what it has saved, NULL while it is away. */
typedef struct layer {
    unsigned char* memory;
    sh_ticket ticket;
    uint32_t fate;
} layer;

/* The memory of what has left is given back at once. */
static void collect(sh_spiller* spiller, layer layers[kLayers], uint32_t flags) {
    sh_ticket named[5]; /* fewer than may have left, so that several calls are needed */
    uint64_t count = 5;
    while (count == 5) {
        SUCCEEDS(sh_spiller_collect(spiller, SH_STREAM_HOST, flags, named, 5, &count));
        for (uint64_t i = 0; i < count; i++)
            for (int k = 0; k < kLayers; k++)
                if (layers[k].ticket == named[i]) {
                    memset(layers[k].memory, 0xee, kBytes);
                    free(layers[k].memory);
                    layers[k].memory = NULL;
                }
    }
}

/* Brings what is needed soon back ahead of its use. */
static void fetch_ahead(sh_spiller* spiller, layer layers[kLayers]) {
    sh_ticket next[2];
    uint64_t addresses[2] = {0, 0}, count = 0;
    SUCCEEDS(sh_spiller_get_upcoming(spiller, 1, next, 2, &count));
    for (uint64_t i = 0; i < count; i++)
        for (int k = 0; k < kLayers; k++)
            if (layers[k].ticket == next[i]) {
                CHECK(layers[k].memory == NULL);
                layers[k].memory = malloc(kBytes);
                addresses[i] = address_of(layers[k].memory);
            }
    SUCCEEDS(sh_prefetch_spilled(spiller, next, addresses, count, SH_STREAM_HOST));
}

static void train_step(sh_spiller* spiller, int step, const uint32_t fates[kLayers]) {
    layer layers[kLayers];
    memset(layers, 0, sizeof layers);
    SUCCEEDS(sh_spiller_begin_step(spiller, (uint64_t)step));
    for (int k = 0; k < kLayers; k++) {
        layers[k].fate = fates[k];
        if (fates[k] == SH_FATE_RECOMPUTE) continue; /* dropped */
        layers[k].memory = malloc(kBytes);
        memset(layers[k].memory, value_of(step, k), kBytes);
        const int leaves = fates[k] == SH_FATE_SPILL;
        const sh_status status =
            save(spiller, layers[k].memory, 0, leaves ? SH_SPILL_NOW : SH_SPILL_KEEP, &layers[k].ticket);
        CHECK(status == (leaves ? SH_OK : SH_KEPT));
        collect(spiller, layers, 0);
    }
    collect(spiller, layers, SH_COLLECT_ALL);
    for (int k = kLayers - 1; k >= 0; k--) {
        layer* at = &layers[k];
        if (at->fate == SH_FATE_RECOMPUTE) continue; /* computed again: nothing to ask for */
        fetch_ahead(spiller, layers);
        CHECK(at->memory != NULL || at->fate == SH_FATE_SPILL);
        if (!at->memory) at->memory = malloc(kBytes);
        const sh_status status = sh_restore(spiller, at->ticket, address_of(at->memory), SH_STREAM_HOST);
        CHECK(status == (at->fate == SH_FATE_SPILL ? SH_OK : SH_KEPT));
        CHECK(is_all(at->memory, value_of(step, k)));
        SUCCEEDS(sh_ticket_release(spiller, at->ticket));
        free(at->memory);
    }
    SUCCEEDS(sh_spiller_end_step(spiller));
}

static void train(sh_device* device) {
    uint32_t fates[kLayers];
    plan_step(fates);
    uint64_t spilled = 0;
    for (int k = 0; k < kLayers; k++) spilled += fates[k] == SH_FATE_SPILL;
    sh_spiller* spiller = NULL;
    SUCCEEDS(sh_spiller_create(device, NULL, &spiller));
    for (int step = 0; step < 3; step++) train_step(spiller, step, fates);
    sh_spiller_stats stats;
    stats.struct_size = sizeof stats;
    SUCCEEDS(sh_spiller_get_stats(spiller, &stats));
    CHECK(stats.steps == 3 && stats.spilled == 3 * spilled && stats.restored == 3 * spilled);
    CHECK(stats.prefetched == 3 * spilled && stats.away_bytes == 0 && stats.kept_bytes == 0);
    sh_spiller_destroy(spiller);
}

/* What the texts of the headers say of the edges. */
static void edges(sh_device* device) {
    sh_spill_class classes[2];
    sh_spill_class_init(&classes[0]);
    sh_spill_class_init(&classes[1]);
    classes[0].bytes = kBytes;
    classes[0].count = 5; /* more than pool_bytes allows */
    classes[1].bytes = 2 * kBytes;
    sh_spiller_options options;
    sh_spiller_options_init(&options);
    options.pool_bytes = 4 * kBytes;
    options.classes = classes;
    options.class_count = 2;
    sh_spiller* spiller = NULL;
    GIVES(SH_ERROR_INVALID_ARGUMENT, sh_spiller_create(device, &options, &spiller));
    classes[0].count = 4;
    SUCCEEDS(sh_spiller_create(device, &options, &spiller));
    sh_spiller_stats stats;
    stats.struct_size = sizeof stats;
    SUCCEEDS(sh_spiller_get_stats(spiller, &stats));
    CHECK(stats.pool_bytes == 4 * kBytes);

    unsigned char* memory = malloc(kBytes);
    unsigned char* back = malloc(kBytes);
    memset(memory, 7, kBytes);
    sh_ticket first = 0, second = 0, named[4];
    uint64_t count = 0;
    SUCCEEDS(sh_spiller_begin_step(spiller, 1));
    SUCCEEDS(save(spiller, memory, 42, SH_SPILL_NOW, &first));
    SUCCEEDS(save(spiller, memory, 42, 0, &second));
    /* The end of one ticket of a shared copy leaves the memory to the other. */
    SUCCEEDS(sh_ticket_release(spiller, first));
    CHECK(sh_ticket_release(spiller, first) == SH_ERROR_INVALID_HANDLE);
    SUCCEEDS(sh_spiller_collect(spiller, SH_STREAM_HOST, SH_COLLECT_ALL, named, 4, &count));
    CHECK(count >= 1 && named[count - 1] == second);
    memset(memory, 0, kBytes);
    SUCCEEDS(sh_spiller_get_upcoming(spiller, 1, named, 4, &count));
    CHECK(count == 1 && named[0] == second);
    /* Addresses of 0, and lists of NULL. */
    uint64_t nowhere = 0;
    CHECK(sh_prefetch_spilled(spiller, &second, &nowhere, 1, SH_STREAM_HOST) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(sh_prefetch_spilled(spiller, NULL, &nowhere, 1, SH_STREAM_HOST) == SH_ERROR_INVALID_ARGUMENT);
    CHECK(sh_prefetch_spilled(spiller, &second, NULL, 1, SH_STREAM_HOST) == SH_ERROR_INVALID_ARGUMENT);
    SUCCEEDS(sh_prefetch_spilled(spiller, NULL, NULL, 0, SH_STREAM_HOST));
    CHECK(sh_restore(spiller, second, 0, SH_STREAM_HOST) == SH_ERROR_INVALID_ARGUMENT);
    /* A ticket of an earlier step is valid, but is not named. */
    SUCCEEDS(sh_spiller_end_step(spiller));
    SUCCEEDS(sh_spiller_begin_step(spiller, 2));
    SUCCEEDS(sh_spiller_get_upcoming(spiller, 1, named, 4, &count));
    CHECK(count == 0);
    SUCCEEDS(sh_restore(spiller, second, address_of(back), SH_STREAM_HOST));
    CHECK(is_all(back, 7));
    SUCCEEDS(sh_ticket_release(spiller, second));
    SUCCEEDS(sh_spiller_end_step(spiller));
    sh_spiller_destroy(spiller);
    free(back);
    free(memory);
}

int main(void) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.backend_options = "capacity=64MiB";
    options.budget_bytes = 16 << 20;
    sh_device* device = NULL;
    SUCCEEDS(sh_device_open("host", &options, &device));
    train(device);
    edges(device);
    sh_device_close(device);
    return failed_checks != 0;
}
