// A small model that streams, for the examples protect and reserve_and_guest.
#pragma once

#include <cstdio>
#include <list>
#include <stagehand/stagehand.hpp>
#include <stdexcept>
#include <string>
#include <vector>

constexpr std::uint64_t kLayerBytes = 4 << 20;

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
inline void step(Model& model) {
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

inline void expect(bool holds, const char* what) {
    if (!holds) throw std::runtime_error(std::string("this does not hold: ") + what);
    std::puts(what);
}
