// Two models share a device. One model reserves the memory that it streams with, and keeps its memory. It lets the
// other model in as a guest for a time.
//
//     reserve_and_guest [DEVICE]
//
// In other languages: reserve_and_guest.c, reserve_and_guest.py and reserve_and_guest.rs.
#include <algorithm>
#include <cstdio>
#include <list>
#include <stagehand/stagehand.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kModelLayers = 12, kGuestLayers = 2;
constexpr std::uint64_t kLayerBytes = 4 << 20, kModelMost = 20 << 20, kBudget = 40 << 20;

// A model. All bytes of layer i have the value `first` + i.
struct Model {
    Model(const stagehand::Device& device, const std::string& name, int layers, int first, std::uint64_t max_bytes = 0)
        : runtime(device, options_of(name, max_bytes)) {
        for (int i = 0; i < layers; ++i) {
            weights.emplace_back(kLayerBytes, static_cast<char>(first + i));
            sh_segment source = SH_SEGMENT_INIT;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            const std::string layer_name = name + " " + std::to_string(i);
            source.kind = SH_SOURCE_POINTER;
            source.pointer = weights.back().data();
            source.bytes = desc.bytes = kLayerBytes;
            desc.segments = &source;
            desc.segment_count = 1;
            desc.name = layer_name.c_str();
            blocks.push_back(runtime.register_block(desc));
        }
    }

    static sh_runtime_options options_of(const std::string& name, std::uint64_t max_bytes) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.name = name.c_str();
        options.max_bytes = max_bytes;
        return options;
    }

    std::list<std::string> weights;  // they must outlive the runtime, which reads them
    stagehand::Runtime runtime;
    std::vector<sh_block> blocks;
};

// One pass over a model. It compares every byte instead of computing.
void step(Model& model) {
    stagehand::Step step = model.runtime.step();
    auto layer = model.weights.begin();
    for (const sh_block block : model.blocks) {
        stagehand::View view = model.runtime.acquire(block, SH_STREAM_HOST);
        std::string there(view.size(), '\0');
        view.read(0, there.data(), there.size());
        if (there != *layer++)
            throw std::runtime_error(std::string(model.runtime.block_info(block).name) + ": its bytes are wrong");
        view.release();
    }
    step.end();
}

void expect(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("this does not hold: ") + what);
    std::puts(what);
}

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
        const stagehand::Reservation reservation = model.runtime.reserve();
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
