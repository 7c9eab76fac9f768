// Protects blocks of a model that streams. The blocks stay on the device as a whole when another model comes, and when
// the library makes new plans.
//
//     protect [DEVICE]
//
// In other languages: protect.c, protect.py and protect.rs.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <list>
#include <stagehand/stagehand.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kLayers = 12;
constexpr std::uint64_t kLayerBytes = 4 << 20, kBudget = 24 << 20;
constexpr std::size_t kProtected[] = {0, 7};

// A model. All bytes of layer i have the value `first` + i.
struct Model {
    Model(const stagehand::Device& device, const std::string& name, int layers, int first)
        : runtime(device, options_of(name)) {
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

    static sh_runtime_options options_of(const std::string& name) {
        sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
        options.name = name.c_str();
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
        const stagehand::Protection protection = model.runtime.protect(blocks);
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
