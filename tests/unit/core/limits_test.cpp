// Sizes and counts at the edge of what the records of a runtime can hold.
#include <algorithm>
#include <memory>
#include <new>

#include "../../stress/scale.h"
#include "core/runtime/runtime_tag.h"
#include "engine.h"

namespace stagehand::test {
namespace {

int32_t fill_nothing(void*, uint64_t, uint64_t, void*) { return 0; }

sh_status register_of_size(sh_runtime* runtime, uint64_t bytes, uint64_t count, std::vector<sh_block>* ids) {
    sh_segment segment = fill_segment(fill_nothing, nullptr, 1);
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    desc.bytes = bytes;
    desc.segments = &segment;
    desc.segment_count = 1;
    const std::vector<sh_block_desc> descs(count, desc);
    ids->resize(count);
    return sh_register_blocks(runtime, descs.data(), count, ids->data());
}

// A unit counts its pages in 32 bits. One page more would wrap to zero, and the block's views would have no memory.
TEST(Limits, block_of_more_pages_than_can_be_counted_is_refused) {
    SoloModel model({}, equal_blocks(1, kPage));
    std::vector<sh_block> ids;
    const uint64_t largest = std::min(kPage * UINT32_MAX, uint64_t(1) << 46);  // large pages: what can be addressed
    EXPECT_REFUSED(register_of_size(model.runtime(), largest + 1, 1, &ids), SH_ERROR_INVALID_ARGUMENT,
                   std::to_string(largest));
    EXPECT_EQ(register_of_size(model.runtime(), kPage << 32, 1, &ids), SH_ERROR_INVALID_ARGUMENT);
    SUCCEEDS(model.use(0));
}

TEST(Limits, blocks_whose_sum_cannot_be_addressed_are_refused) {
    SoloModel model({}, equal_blocks(1, kPage));
    std::vector<sh_block> ids;
    EXPECT_EQ(register_of_size(model.runtime(), (uint64_t(1) << 44) - kPage, (1 << 20) + 1024, &ids),
              SH_ERROR_INVALID_ARGUMENT);
    SUCCEEDS(model.use(0));
}

TEST(Memory, figures_are_those_of_what_is_held) {
    TestDevice device({.budget_bytes = 20 * kPage});
    sh_memory_info memory = device.memory();
    EXPECT_EQ(memory.page_bytes, kPage);
    EXPECT_EQ(memory.budget_bytes, 20 * kPage);
    EXPECT_EQ(memory.runtime_count, 0u);
    EXPECT_EQ(memory.used_bytes + memory.staging_bytes + memory.pinned_bytes, 0u);
    EXPECT_GT(memory.free_bytes, 0u);
    EXPECT_GE(memory.total_bytes, memory.free_bytes);
    Model model(device, equal_blocks(2, 3 * kPage, Origin::pageable));
    for (size_t i = 0; i < 2; i++) SUCCEEDS(model.use(i));
    memory = device.memory();
    EXPECT_EQ(memory.runtime_count, 1u);
    EXPECT_EQ(memory.used_bytes, 6 * kPage);
    EXPECT_EQ(memory.peak_bytes, 6 * kPage);
    EXPECT_GT(memory.staging_bytes, 0u);
    const uint64_t pinned = memory.pinned_bytes;
    void* host = nullptr;
    SUCCEEDS(sh_host_alloc(device.get(), 8 * kPage, &host, nullptr));
    EXPECT_GE(device.memory().pinned_bytes, pinned + 8 * kPage);
    SUCCEEDS(sh_host_free(device.get(), host));
    EXPECT_EQ(device.memory().pinned_bytes, pinned);
}

TEST(Limits, the_largest_options_are_taken) {
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    options.budget_bytes = uint64_t(4) << 30;
    sh_host_options host = SH_HOST_OPTIONS_INIT;
    options.host = &host;
    host.staging_threads = 64;
    host.staging_bytes = uint64_t(128) << 30;
    options.page_bytes = uint64_t(1) << 30;
    options.link_bytes_per_second = 1'000'000'000'000'000;
    sh_device* device = nullptr;
    SUCCEEDS(sh_device_open(device_under_test().c_str(), &options, &device));
    auto caps = sh_sized<sh_device_caps>();
    SUCCEEDS(sh_device_get_caps(device, &caps));
    EXPECT_EQ(caps.staging_threads, 64u);
    EXPECT_EQ(caps.page_bytes, uint64_t(1) << 30);
    sh_device_close(device);
}

// Many blocks of 256 bytes lie in one unit of large pages.
TEST(Limits, update_of_as_many_sources_as_a_unit_has_blocks_keeps_loads_out) {
    DeviceSettings settings;
    settings.page_bytes = 2 << 20;
    settings.budget_bytes = 16 * settings.page_bytes;
    SoloModel model(settings, {});
    std::vector<sh_block> ids;
    SUCCEEDS(register_of_size(model.runtime(), 1, shortened(65536), &ids));
    SUCCEEDS(sh_source_update_begin(model.runtime(), ids.data(), ids.size()));
    auto view = sh_sized<sh_view>();
    EXPECT_EQ(sh_acquire(model.runtime(), ids[5], SH_STREAM_HOST, 0, &view), SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_source_update_end(model.runtime(), ids.data(), ids.size()));
    view = held_view(model.runtime(), ids[5]);
    let_go(model.runtime(), ids[5]);
}

// No id of one runtime is ever an id of another, however many runtimes have come and gone.
TEST(Limits, tags_of_runtimes_that_live_are_never_given_again) {
    const core::RuntimeTag first;
    for (uint32_t k = 0; k < 200'000; k++) {
        const core::RuntimeTag other;
        ASSERT_NE(other.value(), first.value());
        ASSERT_NE(other.value(), 0u);
    }
    std::vector<std::unique_ptr<core::RuntimeTag>> all;
    EXPECT_THROW(while (true) all.push_back(std::make_unique<core::RuntimeTag>()), std::bad_alloc);
    EXPECT_EQ(all.size(), size_t(UINT16_MAX) - 1);
}

// No runtime could use memory that is reserved beyond the ceiling.
TEST(Limits, a_reservation_is_cut_to_the_ceiling) {
    TestDevice device({.budget_bytes = 64 * kPage});
    Model model(device, equal_blocks(8, 4 * kPage), {.max_bytes = 8 * kPage + 1}),
        other(device, equal_blocks(14, 4 * kPage));
    SUCCEEDS(model.schedule(forward(8)));
    SUCCEEDS(other.schedule(forward(14)));
    for (const uint64_t bytes : {uint64_t(40) * kPage, UINT64_MAX}) {
        SUCCEEDS(sh_reserve(model.runtime(), bytes, SH_PRIORITY_PRIMARY, nullptr));
        EXPECT_EQ(model.stats().reserved_bytes, 8 * kPage);
        EXPECT_EQ(device.memory().headroom_bytes, 56 * kPage);
    }
    SUCCEEDS(model.step(forward(8)));
    EXPECT_EQ(model.stats().share_bytes, 8 * kPage);
    SUCCEEDS(other.step(forward(14)));
    EXPECT_EQ(other.stats().held_bytes, 56 * kPage) << "nothing is lost";
}

}  // namespace
}  // namespace stagehand::test
