// Protects blocks of a model that streams. The blocks stay on the device as a whole when another model comes, and when
// the library makes new plans.
//
//     protect [DEVICE]
//
// In other languages: protect.c, protect.py and protect.rs.
#include <algorithm>
#include <iterator>

#include "../small_model/small_model.hpp"

namespace {

constexpr int kLayers = 12;
constexpr std::uint64_t kBudget = 24 << 20;
constexpr std::size_t kProtected[] = {0, 7};

// Returns true if the protected layers are on the device as a whole, in memory of their own.
bool stays(const Model& model) {
    return std::all_of(std::begin(kProtected), std::end(kProtected), [&](std::size_t layer) {
        const sh_block_state info = model.runtime.block_info(model.blocks[layer]);
        return info.present_bytes == kLayerBytes && info.resident_bytes == kLayerBytes;
    });
}

// The result grows if one of the protected layers is loaded.
std::uint64_t loads(const Model& model) {
    std::uint64_t sum = 0;
    for (const std::size_t layer : kProtected) sum += model.runtime.block_info(model.blocks[layer]).serial;
    return sum;
}

void run(const std::string& device_name) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = kBudget;
    stagehand::Device device(device_name, options);
    Model model(device, "model", kLayers, 1);
    step(model);
    step(model);
    expect(model.runtime.stats().ring_bytes > 0, "the model streams");
    {
        std::vector<sh_block> blocks;
        for (const std::size_t layer : kProtected) blocks.push_back(model.blocks[layer]);
        const stagehand::Scope protection = model.runtime.protect(blocks);
        model.runtime.plan();
        step(model);
        expect(stays(model), "the protected layers stay on the device as a whole");
        const std::uint64_t before = loads(model);
        Model other(device, "other", kLayers, 101);
        for (int i = 0; i < 2; ++i) {
            step(other);
            step(model);
        }
        expect(stays(model), "they stay when another model comes");
        device.set_budget(kBudget / 4 * 3);
        step(other);
        step(model);
        expect(stays(model), "they stay when there is less memory");
        expect(loads(model) == before, "none of them was loaded again");
        expect(device.memory().peak_bytes <= kBudget, "the device never held more than its budget");
    }
    const auto is_plain = [&](sh_block block) { return model.runtime.block_info(block).protections == 0; };
    expect(std::all_of(model.blocks.begin(), model.blocks.end(), is_plain),
           "without protection they are layers like the others");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc > 2) {
        std::fprintf(stderr, "usage: protect [DEVICE]\n");
        return 1;
    }
    try {
        run(argc > 1 ? argv[1] : "host");
    } catch (const std::exception& error) {
        std::fprintf(stderr, "protect: %s\n", error.what());
        return 1;
    }
    return 0;
}
