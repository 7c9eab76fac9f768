// Two models share a device. One model reserves the memory that it streams with, and keeps its memory. It lets the
// other model in as a guest for a time.
//
//     reserve_and_guest [DEVICE]
//
// In other languages: reserve_and_guest.c, reserve_and_guest.py and reserve_and_guest.rs.
#include <algorithm>

#include "../small_model/small_model.hpp"

namespace {

constexpr int kModelLayers = 12, kGuestLayers = 2;
constexpr std::uint64_t kModelMost = 20 << 20, kBudget = 40 << 20;

// Lets another model in with `bytes` for its blocks.
stagehand::Scope let_in(Model& model, Model& guest, std::uint64_t bytes) {
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.bytes = bytes;
    return model.runtime.as_guest(guest.runtime, options);
}

// Returns true if there is no room for a guest that needs `bytes`.
bool refused(Model& model, Model& guest, std::uint64_t bytes) {
    try {
        const stagehand::Scope scope = let_in(model, guest, bytes);
        return false;
    } catch (const stagehand::Error& error) {
        return error.status() == SH_ERROR_BUDGET;
    }
}

void run(const std::string& device_name) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = kBudget;
    const stagehand::Device device(device_name, options);
    Model model(device, "model", kModelLayers, 1, kModelMost), guest(device, "guest", kGuestLayers, 101);
    step(model);
    step(model);
    expect(model.runtime.stats().ring_bytes > 0, "the model streams");
    {
        // Reserve: no other model gets the memory that this model streams with.
        const stagehand::Scope reservation = model.runtime.reserve();
        const std::uint64_t reserved = device.memory().reserved_bytes;
        expect(reserved > 0 && reserved <= kModelMost, "it has reserved the memory that it streams with");
        expect(refused(model, guest, kBudget - reserved / 2), "a guest that needs a part of that memory is refused");

        // Guest: the other model has all its layers on the device until the scope ends, and both models work.
        stagehand::Scope scope = model.runtime.as_guest(guest.runtime);
        step(guest);
        step(model);
        step(guest);
        const auto is_there = [&](sh_block block) {
            return guest.runtime.block_info(block).present_bytes == kLayerBytes;
        };
        expect(std::all_of(guest.blocks.begin(), guest.blocks.end(), is_there),
               "a guest that fits has all its layers on the device");
        scope.end();
        expect(guest.runtime.stats().held_bytes == 0, "the guest has left and holds nothing");
    }
    expect(device.memory().reserved_bytes == 0, "nothing is reserved");

    // Keep resident: no other model takes memory from this model.
    step(model);
    const std::uint64_t held = model.runtime.stats().held_bytes;
    {
        const stagehand::Scope scope = model.runtime.keep_resident();
        expect(refused(model, guest, kBudget - held / 2), "a model that is kept resident gives nothing to a guest");
        expect(model.runtime.stats().held_bytes == held, "it holds as much as before");
    }
    {
        const stagehand::Scope scope = let_in(model, guest, kBudget - held / 2);
        expect(model.runtime.stats().held_bytes < held, "afterwards it gives up a part of it");
        step(model);
    }
    step(model);
    expect(device.memory().peak_bytes <= kBudget, "the device never held more than its budget");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 2) {
        std::fprintf(stderr, "usage: reserve_and_guest [DEVICE]\n");
        return 1;
    }
    try {
        run(argc > 1 ? argv[1] : "host");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "reserve_and_guest: %s\n", error.what());
        return 1;
    }
    return 0;
}
