/*
 * Two models share a device. One model reserves the memory that it streams with, and keeps its memory. It lets the
 * other model in as a guest for a time.
 *
 *     reserve_and_guest [DEVICE]
 *
 * In other languages: reserve_and_guest.cpp, reserve_and_guest.py and reserve_and_guest.rs.
 */
#include <inttypes.h>

#include "../small_model/small_model.h"

enum { MODEL_LAYERS = 12, MODEL_MOST = 20 << 20, GUEST_LAYERS = 2, BUDGET = 40 << 20 };

/* Lets another model in with `bytes` for its blocks. 0 means all its blocks. Returns NULL if there is no room. */
static sh_scope* let_in(const struct model* guest, uint64_t bytes) {
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    sh_scope* scope;
    options.bytes = bytes;
    const sh_status status = sh_guest_begin(guest->runtime, &options, &scope);
    if (status == SH_ERROR_BUDGET) return NULL;
    check(status);
    return scope;
}

int main(int argc, char** argv) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* device;
    sh_scope *reservation, *scope;
    program = "reserve_and_guest";
    if (argc > 2) fail("usage", "reserve_and_guest [DEVICE]");
    options.budget_bytes = BUDGET;
    check(sh_device_open(argc > 1 ? argv[1] : "host", &options, &device));
    struct model model = make_model(device, "model", MODEL_LAYERS, 1, MODEL_MOST);
    struct model guest = make_model(device, "guest", GUEST_LAYERS, 101, 0);
    step_of(&model);
    step_of(&model);
    expect(stats_of(&model).ring_bytes > 0, "the model streams");

    /* Reserve: no other model gets the memory that this model streams with. */
    check(sh_reserve(model.runtime, 0, SH_PRIORITY_PRIMARY, &reservation));
    const uint64_t reserved = memory_of(device).reserved_bytes;
    expect(reserved > 0 && reserved <= MODEL_MOST, "it has reserved the memory that it streams with");
    expect(let_in(&guest, BUDGET - reserved / 2) == NULL, "a guest that needs a part of that memory is refused");

    /* Guest: the other model has all its layers on the device until the scope ends, and both models work. */
    scope = let_in(&guest, 0);
    if (scope == NULL) fail("the guest", "there is no room");
    step_of(&guest);
    step_of(&model);
    step_of(&guest);
    for (int i = 0; i < GUEST_LAYERS; ++i)
        if (info_of(&guest, i).present_bytes != LAYER_BYTES) fail("the guest", "it streams");
    puts("a guest that fits has all its layers on the device");
    check(sh_scope_end(scope));
    expect(stats_of(&guest).held_bytes == 0, "the guest has left and holds nothing");
    check(sh_scope_end(reservation));
    expect(memory_of(device).reserved_bytes == 0, "nothing is reserved");

    /* Keep resident: no other model takes memory from this model. */
    step_of(&model);
    const uint64_t held = stats_of(&model).held_bytes;
    check(sh_keep_resident(model.runtime, &scope));
    expect(let_in(&guest, BUDGET - held / 2) == NULL, "a model that is kept resident gives nothing to a guest");
    expect(stats_of(&model).held_bytes == held, "it holds as much as before");
    check(sh_scope_end(scope));
    scope = let_in(&guest, BUDGET - held / 2);
    expect(scope != NULL && stats_of(&model).held_bytes < held, "afterwards it gives up a part of it");
    step_of(&model);
    check(sh_scope_end(scope));
    step_of(&model);
    expect(memory_of(device).peak_bytes <= BUDGET, "the device never held more than its budget");

    destroy_model(&guest);
    destroy_model(&model);
    sh_device_close(device);
    return 0;
}
