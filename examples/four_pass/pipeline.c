/* The four stages: text encoding, base generation, spatial and temporal upscaling. */
#include "pipeline.h"

#include <inttypes.h>
#include <stdio.h>

#include "report.h"

/** Ends a scope on every path. A failure of the work is reported before a failure of the end. */
static bool end_scope(sh_scope* scope, bool worked, struct error* error) {
    const sh_status status = sh_scope_end(scope);
    return worked && succeeded(status, "ending a scope", error);
}

/**
 * Computes the part of the budget that the guests leave. The larger guest needs all its layers at once and its
 * workspace, in whole pages.
 */
static bool rest_of_budget(struct pipeline* pipeline, uint64_t* out, struct error* error) {
    uint64_t most = 0;
    sh_memory_info memory;

    if (!machine_memory(&pipeline->machine, &memory, error)) return false;
    for (int i = SPATIAL_UPSCALER; i <= TEMPORAL_UPSCALER; i++) {
        const struct loaded* const guest = &pipeline->models[i];
        const uint64_t workspace =
            (guest->workspace_bytes + memory.page_bytes - 1) / memory.page_bytes * memory.page_bytes;
        uint64_t whole = 0;
        if (!loaded_whole(guest, &whole, error)) return false;
        if (whole + workspace > most) most = whole + workspace;
    }
    if (most >= memory.budget_bytes)
        return error_set(error, "the budget of %" PRIu64 " bytes is too small: the upscalers alone need %" PRIu64,
                         memory.budget_bytes, most);
    *out = memory.budget_bytes - most;
    return true;
}

bool pipeline_open(struct pipeline* pipeline, const struct options* options, struct error* error) {
    uint64_t most = 0;
    char what[96];

    *pipeline = (struct pipeline){.options = options};
    if (!machine_open(&pipeline->machine, options, error)) return false;
    for (int i = MODEL_COUNT; i-- > 0;) {
        /*
         * The transformer takes all memory that it can get, so its limit leaves room for the upscalers. They are
         * opened first.
         */
        if (i == TRANSFORMER && !rest_of_budget(pipeline, &most, error)) return false;
        snprintf(what, sizeof what, most > 0 ? "the %s, with the %s that the upscalers leave" : "the %s",
                 models[i].name, in_words((double)most));
        if (!loaded_open(&pipeline->models[i], &models[i], &pipeline->machine, options, most, error) ||
            !loaded_fits(&pipeline->models[i], what, error))
            return false;
    }
    return true;
}

void pipeline_close(struct pipeline* pipeline) {
    for (int i = 0; i < MODEL_COUNT; i++) loaded_close(&pipeline->models[i]);
    machine_close(&pipeline->machine);
}

/** Encodes the prompts after the first while the transformer asks for memory. */
static bool encode_more(struct pipeline* pipeline, struct error* error) {
    struct loaded* const encoder = &pipeline->models[TEXT_ENCODER];
    const unsigned more = pipeline->options->prompts - 1;
    sh_plan_info plan = {.struct_size = sizeof(sh_plan_info)};
    sh_runtime_stats before, after;

    if (!succeeded(sh_plan(encoder->runtime, NULL, &plan), encoder->model->name, error)) return false;
    /*
     * The transformer may make its plan already. It gets the memory that the text encoder leaves, which may be too
     * little.
     */
    const sh_status planned = sh_plan(pipeline->models[TRANSFORMER].runtime, NULL, NULL);
    if (planned != SH_ERROR_BUDGET && !succeeded(planned, "the transformer's first plan", error)) return false;
    if (!loaded_stats(encoder, &before, error)) return false;
    for (unsigned i = 0; i < more; i++)
        if (!loaded_run(encoder, error)) return false;
    if (!loaded_stats(encoder, &after, error)) return false;
    const uint64_t copied = after.bytes_to_device - before.bytes_to_device;
    promise(&pipeline->promises, copied <= more * plan.bytes_per_step,
            "%u more prompts copied %" PRIu64 " bytes of the text encoder; %" PRIu64 " of its bytes do not stay", more,
            copied, plan.bytes_per_step);
    return true;
}

/** Stage 1. The text encoder stays on the device for all prompts, although the transformer asks for memory. */
static bool encode_text(struct pipeline* pipeline, struct error* error) {
    struct loaded* const encoder = &pipeline->models[TEXT_ENCODER];
    struct report report;
    sh_scope* scope = NULL;

    if (!report_begin(&report, &pipeline->machine, pipeline->models, error) ||
        !succeeded(sh_keep_resident(encoder->runtime, &scope), "keeping the text encoder", error))
        return false;
    const bool ok = loaded_run(encoder, error) && encode_more(pipeline, error) &&
                    report_end(&report, "1 text encoding", pipeline->options->prompts * encoder->compute_ns, error);
    return end_scope(scope, ok, error);
}

/** Stage 2. The transformer streams. Its resident part stays until the reservation is released. */
static bool generate(struct pipeline* pipeline, struct error* error) {
    struct loaded* const transformer = &pipeline->models[TRANSFORMER];
    sh_plan_info plan = {.struct_size = sizeof(sh_plan_info)};
    sh_runtime_stats reserved;
    struct report report;

    if (!report_begin(&report, &pipeline->machine, pipeline->models, error) ||
        /* There are no more prompts, so the text encoder gives its memory up. */
        !succeeded(sh_trim(pipeline->models[TEXT_ENCODER].runtime, 0, NULL), "the text encoder", error) ||
        !succeeded(sh_plan(transformer->runtime, NULL, &plan), transformer->model->name, error) ||
        !succeeded(sh_reserve(transformer->runtime, 0, SH_PRIORITY_PRIMARY, &pipeline->reservation), "reserving",
                   error) ||
        !loaded_stats(transformer, &reserved, error))
        return false;
    pipeline->given_up_bytes = reserved.given_up_bytes;
    for (unsigned i = 0; i < pipeline->options->steps; i++)
        if (!loaded_run(transformer, error)) return false;
    if (!loaded_present(transformer, &pipeline->present_bytes, error) ||
        !report_end(&report, "2 base generation", pipeline->options->steps * transformer->compute_ns, error))
        return false;
    promise(&pipeline->promises, reserved.reserved_bytes == plan.resident_bytes + plan.ring_bytes,
            "the reservation is what the transformer's plan uses: %s, with a ring of %s for the %s that a step "
            "copies",
            in_words((double)reserved.reserved_bytes), in_words((double)plan.ring_bytes),
            in_words((double)plan.bytes_per_step));
    return true;
}

/** Stages 3 and 4. A guest gets memory that the reservation leaves, and leaves nothing behind. */
static bool upscale(struct pipeline* pipeline, int model, const char* title, struct error* error) {
    struct loaded* const guest = &pipeline->models[model];
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    sh_runtime_stats left;
    struct report report;
    sh_scope* scope = NULL;
    uint64_t present = 0;

    options.workspace_bytes = guest->workspace_bytes;
    if (!report_begin(&report, &pipeline->machine, pipeline->models, error) ||
        !succeeded(sh_guest_begin(guest->runtime, &options, &scope), guest->model->name, error))
        return false;
    const bool ok = loaded_run(guest, error) && report_end(&report, title, guest->compute_ns, error);
    if (!end_scope(scope, ok, error) || !loaded_stats(guest, &left, error) || !loaded_present(guest, &present, error) ||
        !machine_watch(&pipeline->machine, error))
        return false;
    promise(&pipeline->promises, left.held_bytes == 0 && left.guest_bytes == 0 && present == 0,
            "after its scope the %s holds %" PRIu64 " bytes, and %" PRIu64 " of its weights' bytes are on the device",
            guest->model->name, left.held_bytes, present);
    return true;
}

/** Checks the promises for the time of the transformer's reservation. */
static bool check_reserved(struct pipeline* pipeline, struct error* error) {
    const struct loaded* const transformer = &pipeline->models[TRANSFORMER];
    sh_runtime_stats now;
    uint64_t present = 0;

    if (!loaded_stats(transformer, &now, error) || !loaded_present(transformer, &present, error)) return false;
    promise(&pipeline->promises, now.given_up_bytes == pipeline->given_up_bytes,
            "the transformer gave up %" PRIu64 " bytes while it was reserved",
            now.given_up_bytes - pipeline->given_up_bytes);
    promise(&pipeline->promises, present > 0 && present >= pipeline->present_bytes,
            "the guests left %s of its weights on the device, of %s", in_words((double)present),
            in_words((double)pipeline->present_bytes));
    return true;
}

/** Checks the promises for the whole run. */
static bool check_always(struct pipeline* pipeline, struct error* error) {
    sh_memory_info memory;

    if (!machine_watch(&pipeline->machine, error) || !machine_memory(&pipeline->machine, &memory, error)) return false;
    promise(&pipeline->promises, memory.peak_bytes <= memory.budget_bytes && pipeline->machine.over_budget == 0,
            "the device never held more than the budget: at most %" PRIu64 " of %" PRIu64 " bytes", memory.peak_bytes,
            memory.budget_bytes);
    promise(&pipeline->promises, pipeline->machine.over_claimed == 0,
            "headroom was never below zero, and no memory was claimed twice");
    promise(&pipeline->promises, memory.reserved_bytes == 0 && memory.guest_bytes == 0 && memory.protected_bytes == 0,
            "in the end nothing is reserved, lent or protected, and there is headroom for %s",
            in_words((double)memory.headroom_bytes));
    return true;
}

/** With --verify: checks that every pass of every model compared all its bytes. */
static void check_contents(struct pipeline* pipeline) {
    const unsigned passes[MODEL_COUNT] = {pipeline->options->steps, pipeline->options->prompts, 1, 1};
    uint64_t compared = 0, wrong = 0;
    bool all = true;

    for (int i = 0; i < MODEL_COUNT; i++) {
        const struct loaded* const model = &pipeline->models[i];
        compared += model->compared_bytes;
        wrong += model->wrong_layers;
        all = all && model->compared_bytes == passes[i] * model->bytes;
    }
    promise(&pipeline->promises, all && wrong == 0,
            "every byte that was used was compared: %s, %" PRIu64 " layers wrong", in_words((double)compared), wrong);
}

bool pipeline_run(struct pipeline* pipeline, struct error* error) {
    if (!encode_text(pipeline, error) || !generate(pipeline, error) ||
        !upscale(pipeline, SPATIAL_UPSCALER, "3 spatial upscaling", error) ||
        !upscale(pipeline, TEMPORAL_UPSCALER, "4 temporal upscaling", error) || !check_reserved(pipeline, error) ||
        !succeeded(sh_scope_end(pipeline->reservation), "releasing", error) || !check_always(pipeline, error))
        return false;
    if (pipeline->options->verify) check_contents(pipeline);
    return true;
}
