// The loop in C++, and a program that runs one of the two loops: see pairs.h.
//
//     pairs c|cpp COUNT
#include "pairs.h"

#include <cstdio>
#include <cstdlib>
#include <stagehand/stagehand.hpp>
#include <string>
#include <vector>

uint64_t pairs_in_cpp(sh_runtime* raw, const sh_block* blocks, uint64_t count, uint64_t pairs) {
    stagehand::Runtime runtime(raw);
    uint64_t sum = 0;
    for (uint64_t i = 0; i < pairs; ++i) {
        const stagehand::View view = runtime.acquire(blocks[i % count], SH_STREAM_HOST);
        sum += reinterpret_cast<uintptr_t>(view.address());
    }
    runtime.release();  // the caller owns the runtime
    return sum;
}

int main(int argc, char** argv) {
    if (argc != 3) return 2;
    const std::string language = argv[1];
    const uint64_t pairs = std::strtoull(argv[2], nullptr, 10);
    static unsigned char memory[8][4096];
    try {
        const stagehand::Device device("host");
        stagehand::Runtime runtime(device);
        std::vector<sh_block> blocks;
        for (auto& bytes : memory) {
            sh_segment segment = SH_SEGMENT_INIT;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            segment.kind = SH_SOURCE_POINTER;
            segment.pointer = bytes;
            segment.bytes = desc.bytes = sizeof bytes;
            desc.segments = &segment;
            desc.segment_count = 1;
            blocks.push_back(runtime.register_block(desc));
        }
        const auto run = language == "c" ? pairs_in_c : pairs_in_cpp;
        for (int i = 0; i < 3; ++i) {  // the order is learned, and everything is resident, before anything is counted
            const stagehand::Step step = runtime.step();
            for (const sh_block block : blocks) runtime.acquire(block, SH_STREAM_HOST);
        }
        const stagehand::Step step = runtime.step();
        if (run(runtime.get(), blocks.data(), blocks.size(), pairs) == 0) return 1;
        std::printf("%s\n", language.c_str());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unexpected: %s\n", error.what());
        return 1;
    }
    return 0;
}
