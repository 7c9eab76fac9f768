// Blocks whose source is device memory.
#include "engine.h"

namespace stagehand::test {
namespace {

struct Registered {
    sh_status status;
    sh_block id;
};

Registered register_from(sh_runtime* runtime, void* pointer, uint64_t bytes, uint32_t flags = 0) {
    sh_segment segment = SH_SEGMENT_INIT;
    segment.kind = SH_SOURCE_DEVICE;
    segment.pointer = pointer;
    segment.bytes = bytes;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = bytes;
    desc.flags = flags;
    desc.segments = &segment;
    desc.segment_count = 1;
    Registered out{SH_OK, 0};
    out.status = sh_register_blocks(runtime, &desc, 1, &out.id);
    return out;
}

// The views of one runtime are the sources of the other.
TEST(DeviceSource, streams_through_a_small_share) {
    SoloModel origin({.budget_bytes = 60 * kPage}, equal_blocks(6, 6 * kPage, Origin::pinned), forward(6));
    sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
    options.max_bytes = 14 * kPage;
    sh_runtime* runtime = nullptr;
    SUCCEEDS(sh_runtime_create(origin.device(), &options, &runtime));
    const std::unique_ptr<sh_runtime, decltype(&sh_runtime_destroy)> owner(runtime, sh_runtime_destroy);
    std::vector<sh_block> blocks;
    for (size_t i = 0; i < 6; i++) {
        const sh_view view = origin.acquire(i);  // held until the end: resident, and its address stays
        const Registered registered = register_from(runtime, view.address, view.bytes);
        SUCCEEDS(registered.status);
        blocks.push_back(registered.id);
    }
    for (int step = 0; step < 4; step++) {
        SUCCEEDS(sh_step_begin(runtime, nullptr));
        for (size_t i = 0; i < 6; i++) {
            sh_view view = held_view(runtime, blocks[i]);
            EXPECT_EQ(origin.bytes().read(view.address, view.bytes), *origin.truth(i)) << "block " << i;
            let_go(runtime, blocks[i]);
        }
        SUCCEEDS(sh_step_end(runtime));
    }
    auto stats = sh_sized<sh_runtime_stats>();
    SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
    EXPECT_GT(stats.bytes_to_device, 3 * 6 * 6 * kPage / 2) << "nothing was streamed";
    EXPECT_EQ(origin.memory().staging_bytes, 0u) << "no worker is needed";
    for (size_t i = 0; i < 6; i++) origin.release(i);
}

TEST(DeviceSource, what_cannot_be_reached_is_refused) {
    SoloModel model({.budget_bytes = 60 * kPage}, equal_blocks(2, 6 * kPage, Origin::pinned));
    std::vector<uint8_t> host(kPage);
    EXPECT_REFUSED(register_from(model.runtime(), host.data(), host.size()).status, SH_ERROR_INVALID_ARGUMENT,
                   "device memory");
    EXPECT_EQ(register_from(model.runtime(), nullptr, kPage).status, SH_ERROR_INVALID_ARGUMENT);
    sh_view view = model.acquire(0);
    EXPECT_EQ(register_from(model.runtime(), view.address, uint64_t(1) << 40).status, SH_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(register_from(model.runtime(), view.address, kPage, SH_BLOCK_MUTABLE).status, SH_ERROR_INVALID_ARGUMENT);
    model.release(0);
    SUCCEEDS(model.use(1));
}

}  // namespace
}  // namespace stagehand::test
