// Blocks of several segments.
#include <algorithm>
#include <atomic>
#include <vector>

#include "engine.h"

namespace stagehand::test {
namespace {

// Tensors of a file that lie in pinned memory one after the other, a page each, are loaded by one copy if that is
// right. One copy is wrong if parts of it must wait for different uses, as at the end of a block's resident part.
TEST(Segments, that_touch_come_after_the_uses_of_all_their_pages) {
    constexpr size_t kBlocks = 3;
    const uint64_t pages = 6, bytes = pages * kPage;
    for (const uint64_t budget : {8, 11, 13}) {
        TestDevice device({.budget_bytes = budget * kPage});
        sh_runtime* runtime = nullptr;
        SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
        std::vector<void*> memory(kBlocks);
        std::vector<sh_use> order(kBlocks, SH_USE_INIT);
        std::vector<std::vector<uint8_t>> truth(kBlocks);
        for (size_t i = 0; i < kBlocks; i++) {
            SUCCEEDS(sh_host_alloc(device.get(), bytes, &memory[i], nullptr));
            truth[i] = contents_of(i, 0, bytes);
            std::copy(truth[i].begin(), truth[i].end(), static_cast<uint8_t*>(memory[i]));
            std::vector<sh_segment> segments(pages, SH_SEGMENT_INIT);
            for (size_t k = 0; k < pages; k++) {
                segments[k].kind = SH_SOURCE_POINTER;
                segments[k].offset = k * kPage;
                segments[k].bytes = kPage;
                segments[k].pointer = static_cast<char*>(memory[i]) + k * kPage;
            }
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = bytes;
            desc.segments = segments.data();
            desc.segment_count = segments.size();
            SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &order[i].block));
            order[i].compute_ns = 1000;
        }
        SUCCEEDS(sh_set_schedule(runtime, order.data(), order.size()));
        const sh_stream stream = device.stream();
        std::atomic<uint64_t> wrong{0}, compared{0};
        for (int k = 0; k < 3; k++) {
            SUCCEEDS(sh_step_begin(runtime, nullptr));
            for (size_t i = 0; i < kBlocks; i++) {
                sh_view view = held_view(runtime, order[i].block, stream);
                SUCCEEDS(sh_stream_launch(device.get(), stream, nullptr, nullptr, 3'000'000));
                SUCCEEDS(device.bytes().look(stream, view.address, bytes,
                                             [&wrong, &compared, &expected = truth[i]](const uint8_t* at) {
                                                 compared++;
                                                 wrong += !std::equal(expected.begin(), expected.end(), at);
                                             }));
                let_go(runtime, order[i].block, stream);
            }
            SUCCEEDS(sh_step_end(runtime));
        }
        device.synchronize();
        EXPECT_EQ(compared, 3 * kBlocks);
        EXPECT_EQ(wrong, 0u) << "with a budget of " << budget << " pages";
        sh_runtime_destroy(runtime);
        for (void* const each : memory) SUCCEEDS(sh_host_free(device.get(), each));
    }
}

}  // namespace
}  // namespace stagehand::test
