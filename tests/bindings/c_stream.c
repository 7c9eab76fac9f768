/*
 * A C program that streams a model through a quarter of its size: with pageable and pinned sources, on the calling
 * thread and on a stream, forward and backward. The program compares every byte.
 */
#include "check.h"

#include <stdlib.h>

enum { BLOCKS = 12, STEPS = 3 };

struct model {
    unsigned char* bytes[BLOCKS];
    size_t size[BLOCKS];
    size_t total;
    sh_block id[BLOCKS];
};

struct use {
    const struct model* model;
    unsigned block;
    const void* address;
    size_t wrong;
};

static void compare_in_stream(void* user_data) {
    struct use* use = user_data;
    use->wrong += wrong_bytes(use->address, use->block, use->model->size[use->block]);
}

/* The blocks have different sizes, and every second block is in pinned memory. */
static void make_model(struct model* model, sh_device* device) {
    for (unsigned i = 0; i < BLOCKS; ++i) {
        void* memory = NULL;
        model->size[i] = 100000 + 37777 * (size_t)(i % 5);
        if (i % 2) {
            SUCCEEDS(sh_host_alloc(device, model->size[i], &memory, NULL));
        } else {
            memory = malloc(model->size[i]);
        }
        model->bytes[i] = memory;
        for (size_t b = 0; b < model->size[i]; ++b) model->bytes[i][b] = model_byte(i, b);
        model->total += model->size[i];
    }
}

static void free_model(struct model* model, sh_device* device) {
    for (unsigned i = 0; i < BLOCKS; ++i) {
        if (i % 2) {
            SUCCEEDS(sh_host_free(device, model->bytes[i]));
        } else {
            free(model->bytes[i]);
        }
    }
}

static void register_model(struct model* model, sh_runtime* runtime) {
    for (unsigned i = 0; i < BLOCKS; ++i) {
        const size_t half = model->size[i] / 2;
        sh_segment segments[2] = {SH_SEGMENT_INIT, SH_SEGMENT_INIT};
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        segments[0].kind = segments[1].kind = SH_SOURCE_POINTER;
        segments[0].pointer = model->bytes[i];
        segments[0].bytes = half;
        segments[1].pointer = model->bytes[i] + half;
        segments[1].offset = half;
        segments[1].bytes = model->size[i] - half;
        desc.bytes = model->size[i];
        desc.segments = segments;
        desc.segment_count = 2;
        SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &model->id[i]));
    }
}

static void use_on_host(sh_runtime* runtime, const struct model* model, unsigned i) {
    sh_view view = {.struct_size = sizeof(sh_view)};
    SUCCEEDS(sh_acquire(runtime, model->id[i], SH_STREAM_HOST, 0, &view));
    CHECK(view.block == model->id[i] && view.bytes == model->size[i] && view.address != NULL);
    CHECK(view.flags & SH_VIEW_FIXED_ADDRESS);
    CHECK(wrong_bytes(view.address, i, model->size[i]) == 0);
    SUCCEEDS(sh_release(runtime, model->id[i], SH_STREAM_HOST));
}

static void stream_on_host(sh_runtime* runtime, const struct model* model) {
    for (int step = 0; step < STEPS; ++step) {
        SUCCEEDS(sh_step_begin(runtime, NULL));
        for (unsigned i = 0; i < BLOCKS; ++i) use_on_host(runtime, model, i);
        for (unsigned i = BLOCKS; i-- > 0;) use_on_host(runtime, model, i);
        SUCCEEDS(sh_step_end(runtime));
    }
}

static void stream_on_stream(sh_device* device, sh_runtime* runtime, const struct model* model) {
    static struct use uses[STEPS][BLOCKS];
    sh_stream stream = 0;
    size_t wrong = 0;
    SUCCEEDS(sh_stream_create(device, &stream));
    for (int step = 0; step < STEPS; ++step) {
        SUCCEEDS(sh_step_begin(runtime, NULL));
        for (unsigned i = 0; i < BLOCKS; ++i) {
            sh_view view = {.struct_size = sizeof(sh_view)};
            SUCCEEDS(sh_acquire(runtime, model->id[i], stream, 0, &view));
            uses[step][i] = (struct use){model, i, view.address, 0};
            SUCCEEDS(sh_stream_launch(device, stream, compare_in_stream, &uses[step][i], 0));
            SUCCEEDS(sh_release(runtime, model->id[i], stream));
        }
        SUCCEEDS(sh_step_end(runtime));
    }
    SUCCEEDS(sh_stream_synchronize(device, stream));
    for (int step = 0; step < STEPS; ++step)
        for (unsigned i = 0; i < BLOCKS; ++i) wrong += uses[step][i].wrong;
    CHECK(wrong == 0);
    SUCCEEDS(sh_stream_forget(runtime, stream));
    sh_stream_destroy(device, stream);
}

static void read_back(sh_runtime* runtime, const struct model* model) {
    static unsigned char copy[300000];
    sh_view view = {.struct_size = sizeof(sh_view)};
    SUCCEEDS(sh_acquire(runtime, model->id[3], SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_read_block(runtime, model->id[3], SH_STREAM_HOST, 0, copy, model->size[3]));
    CHECK(memcmp(copy, model->bytes[3], model->size[3]) == 0);
    SUCCEEDS(sh_release(runtime, model->id[3], SH_STREAM_HOST));
}

int main(void) {
    static struct model model;
    sh_device* device = NULL;
    sh_runtime* runtime = NULL;
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_memory_info memory = {.struct_size = sizeof(sh_memory_info)};
    sh_runtime_stats stats = {.struct_size = sizeof(sh_runtime_stats)};
    sh_plan_info plan = {.struct_size = sizeof(sh_plan_info)};

    options.page_bytes = 4096;
    options.budget_bytes = 480 * 1024;
    SUCCEEDS(sh_device_open("host", &options, &device));
    make_model(&model, device);
    CHECK(model.total > 4 * options.budget_bytes);

    SUCCEEDS(sh_runtime_create(device, NULL, &runtime));
    register_model(&model, runtime);
    stream_on_host(runtime, &model);
    stream_on_stream(device, runtime, &model);
    read_back(runtime, &model);
    SUCCEEDS(sh_runtime_synchronize(runtime));

    SUCCEEDS(sh_device_get_memory(device, &memory));
    CHECK(memory.budget_bytes == options.budget_bytes && memory.runtime_count == 1);
    CHECK(memory.used_bytes > 0 && memory.peak_bytes >= memory.used_bytes);
    CHECK(memory.peak_bytes <= options.budget_bytes);
    SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
    CHECK(stats.steps == 2 * STEPS && stats.acquires == 3 * STEPS * BLOCKS + 1);
    CHECK(stats.hits + stats.misses == stats.acquires && stats.failed_loads == 0);
    CHECK(stats.bytes_to_device > model.total);
    SUCCEEDS(sh_plan(runtime, NULL, &plan));
    CHECK(plan.model_bytes == model.total && plan.resident_bytes + plan.ring_bytes <= options.budget_bytes);
    CHECK(plan.smallest_budget_bytes > 0 && plan.smallest_budget_bytes <= options.budget_bytes);

    sh_runtime_destroy(runtime);
    SUCCEEDS(sh_device_get_memory(device, &memory));
    CHECK(memory.used_bytes == 0 && memory.runtime_count == 0);
    free_model(&model, device);
    sh_device_close(device);
    return failed_checks != 0;
}
