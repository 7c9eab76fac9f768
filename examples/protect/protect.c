/*
 * Protects blocks of a model that streams. The blocks stay on the device as a whole when another model comes, and when
 * the library makes new plans.
 *
 *     protect [DEVICE]
 *
 * In other languages: protect.cpp, protect.py and protect.rs.
 */
#include "../small_model/small_model.h"

enum { MODEL_LAYERS = 12, BUDGET = 24 << 20, PROTECTED = 2 };

static const int protected_layers[PROTECTED] = {0, 7};

/* Returns true if the protected layers are on the device as a whole, in memory of their own. */
static int stays(const struct model* model) {
    for (int i = 0; i < PROTECTED; ++i) {
        const sh_block_state info = info_of(model, protected_layers[i]);
        if (info.present_bytes != LAYER_BYTES || info.resident_bytes != LAYER_BYTES) return 0;
    }
    return 1;
}

/* The result grows if one of the protected layers is loaded. */
static uint64_t loads(const struct model* model) {
    uint64_t sum = 0;
    for (int i = 0; i < PROTECTED; ++i) sum += info_of(model, protected_layers[i]).serial;
    return sum;
}

int main(int argc, char** argv) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* device;
    sh_block blocks[PROTECTED];
    sh_scope* protection;
    program = "protect";
    if (argc > 2) fail("usage", "protect [DEVICE]");
    options.budget_bytes = BUDGET;
    check(sh_device_open(argc > 1 ? argv[1] : "host", &options, &device));
    struct model model = make_model(device, "model", MODEL_LAYERS, 1, 0);
    step_of(&model);
    step_of(&model);
    expect(stats_of(&model).ring_bytes > 0, "the model streams");

    for (int i = 0; i < PROTECTED; ++i) blocks[i] = model.blocks[protected_layers[i]];
    check(sh_protect_blocks(model.runtime, blocks, PROTECTED, &protection));
    check(sh_plan(model.runtime, NULL, NULL));
    step_of(&model);
    expect(stays(&model), "the protected layers stay on the device as a whole");
    const uint64_t before = loads(&model);
    struct model other = make_model(device, "other", MODEL_LAYERS, 101, 0);
    for (int i = 0; i < 2; ++i) {
        step_of(&other);
        step_of(&model);
    }
    expect(stays(&model), "they stay when another model comes");
    check(sh_device_set_budget(device, BUDGET / 4 * 3));
    step_of(&other);
    step_of(&model);
    expect(stays(&model), "they stay when there is less memory");
    expect(loads(&model) == before, "none of them was loaded again");
    expect(memory_of(device).peak_bytes <= BUDGET, "the device never held more than its budget");
    destroy_model(&other);
    check(sh_scope_end(protection));
    for (int i = 0; i < MODEL_LAYERS; ++i)
        if (info_of(&model, i).protections != 0) fail("a layer", "it is still protected");
    puts("without protection they are layers like the others");

    destroy_model(&model);
    sh_device_close(device);
    return 0;
}
