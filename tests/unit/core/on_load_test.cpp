// on_load: the ranges that it gets, once for each load, and the changes that it may make to them before their first
// use.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "engine.h"

namespace stagehand::test {
namespace {

// Adds one to each loaded byte, in the copy stream.
struct Patch {
    TestDevice& device;
    std::mutex mutex;
    std::map<sh_block, uint8_t*> address;               // of the block, computed from the range
    std::map<sh_block, std::vector<uint32_t>> patched;  // per byte, since the last look
    std::atomic<int32_t> result{0};
    std::atomic<uint64_t> calls{0}, outside{0}, cut{0};
};
int32_t patch(const sh_loaded_range* range, void* data) {
    Patch& patch = *static_cast<Patch*>(data);
    patch.calls++;
    if (patch.result) return patch.result;
    if (range->offset > range->block_bytes || range->bytes > range->block_bytes - range->offset ||
        range->stream == SH_STREAM_HOST)
        patch.outside++;
    const uint64_t unit = range->block_bytes < 2 * kPage ? 256 : kPage,
                   end = range->offset + range->bytes;  // small blocks may share pages
    if (range->offset % unit || (end % unit && end != range->block_bytes) ||
        reinterpret_cast<uintptr_t>(range->address) % 256)
        patch.cut++;
    {
        std::lock_guard lock(patch.mutex);
        uint8_t* const begin = static_cast<uint8_t*>(range->address) - range->offset;
        uint8_t*& address = patch.address[range->block];
        if (address && address != begin && !devices_without_pages()) patch.outside++;
        address = begin;
        auto& counts = patch.patched[range->block];
        counts.resize(range->block_bytes);
        for (uint64_t k = 0; k < range->bytes; k++) counts[range->offset + k]++;
    }
    const auto add_one = [bytes = range->bytes](uint8_t* at) {
        for (uint64_t k = 0; k < bytes; k++) at[k]++;
    };
    return patch.device.bytes().change(range->stream, range->address, range->bytes, add_one) == SH_OK ? 0 : -1;
}

class OnLoad : public testing::TestWithParam<std::tuple<Origin, uint64_t, uint32_t>> {};

TEST_P(OnLoad, each_byte_is_patched_once_per_load) {
    const auto [origin, pages, flags] = GetParam();
    TestDevice device({.budget_bytes = pages * kPage});
    Patch patched{device, {}, {}, {}, {}, {}, {}, {}};
    std::vector<BlockSpec> specs = unequal_blocks(10, origin);
    for (BlockSpec& spec : specs) {
        spec.flags = flags;
        spec.on_load = patch;
        spec.user_data = &patched;
    }
    Model model(device, specs);
    for (size_t i = 0; i < 10; i++) {
        auto bytes = *model.truth(i);
        for (uint8_t& byte : bytes) byte++;
        model.set_truth(i, bytes);
    }
    if (!(flags & SH_BLOCK_UNORDERED)) {
        SUCCEEDS(model.schedule(forward(10)));
    }
    const sh_stream stream = device.stream();
    for (int k = 0; k < 5; k++) SUCCEEDS(model.step(forward(10), k % 2 ? stream : SH_STREAM_HOST));
    device.synchronize();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(patched.outside.load(), 0u);
    EXPECT_EQ(patched.cut.load(), 0u) << "a range that neither the block nor a page bounds";
    EXPECT_GE(patched.patched.size(), 10u);
    for (size_t i = 0; i < 10; i++) {
        void* const now = model.state(i).address;
        EXPECT_TRUE(now == patched.address[model.id(i)] || (!now && devices_without_pages())) << "block " << i;
    }
    if (flags & SH_BLOCK_WHOLE) {
        for (const auto& [block, counts] : patched.patched)
            EXPECT_EQ(*std::min_element(counts.begin(), counts.end()), *std::max_element(counts.begin(), counts.end()))
                << "a part of a whole block";
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, OnLoad,
                         testing::Combine(testing::Values(Origin::pinned, Origin::file, Origin::fill),
                                          testing::Values(uint64_t(12), uint64_t(60)),
                                          testing::Values(0u, uint32_t(SH_BLOCK_WHOLE), uint32_t(SH_BLOCK_UNORDERED))));

// A block whose segment covers only a part of it. The callback writes the rest, and gets the rest as well.
struct Expanded {
    DeviceBytes& bytes;
    std::atomic<uint64_t> calls{0}, in_parts{0};
};
int32_t expand(const sh_loaded_range* range, void* data) {
    Expanded& expanded = *static_cast<Expanded*>(data);
    expanded.calls++;
    if (range->offset || range->bytes != range->block_bytes) expanded.in_parts++;
    // Expands each byte of the block's second half to two values of four bits. A byte is read before it is overwritten.
    const auto widen = [bytes = range->bytes](uint8_t* at) {
        for (uint64_t k = 0; k < bytes / 2; k++) {
            const uint8_t both = at[bytes / 2 + k];
            at[2 * k] = both & 15;
            at[2 * k + 1] = both >> 4;
        }
    };
    return expanded.bytes.change(range->stream, range->address, range->bytes, widen) == SH_OK ? 0 : -1;
}

TEST(Loaded, dequantises_what_its_segment_brings_to_the_end_of_a_whole_block) {
    constexpr size_t kBlocks = 5;
    const uint64_t large = 6 * kPage, packed = large / 2;
    for (const Origin origin : {Origin::pinned, Origin::file}) {
        TestDevice device({.budget_bytes = 14 * kPage});
        Expanded expanded{device.bytes(), {}, {}};
        sh_runtime* runtime = nullptr;
        SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
        std::vector<std::vector<uint8_t>> truth;
        std::vector<std::unique_ptr<Source>> sources;
        std::vector<sh_block> ids(kBlocks);
        for (size_t i = 0; i < kBlocks; i++) {
            const std::vector<uint8_t> quantised = contents_of(i, 0, packed);
            for (const uint8_t both : quantised) {
                if (truth.size() == i) truth.emplace_back();
                truth[i].push_back(both & 15);
                truth[i].push_back(both >> 4);
            }
            sources.push_back(std::make_unique<Source>(device.get(), origin, quantised));
            const sh_segment segment = sources[i]->segment(packed);
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.flags = SH_BLOCK_WHOLE;
            desc.bytes = large;
            desc.segments = &segment;
            desc.segment_count = 1;
            desc.on_load = expand;
            desc.user_data = &expanded;
            SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &ids[i]));
        }
        for (int k = 0; k < 4; k++) {
            SUCCEEDS(sh_step_begin(runtime, nullptr));
            for (size_t i = 0; i < kBlocks; i++) {
                sh_view view = held_view(runtime, ids[i]);
                EXPECT_EQ(device.bytes().read(view.address, large), truth[i]) << "block " << i << " in step " << k;
                let_go(runtime, ids[i]);
            }
            SUCCEEDS(sh_step_end(runtime));
        }
        SUCCEEDS(sh_runtime_synchronize(runtime));
        auto stats = sh_sized<sh_runtime_stats>();
        SUCCEEDS(sh_runtime_get_stats(runtime, &stats));
        EXPECT_EQ(expanded.in_parts.load(), 0u);
        EXPECT_EQ(expanded.calls.load(), stats.loads - stats.cancelled_loads)
            << "once for each load that was not given up";
        EXPECT_EQ(stats.bytes_to_device, expanded.calls.load() * packed)
            << "only what is compressed goes over the link";
        sh_runtime_destroy(runtime);
        device.synchronize();
    }
}

int32_t add_up(const sh_loaded_range* range, void* sum) {
    static_cast<std::atomic<uint64_t>*>(sum)->fetch_add(range->bytes);
    return 0;
}

// This also holds for a block without any source.
TEST(Loaded, is_told_of_bytes_that_no_segment_covers) {
    TestDevice device({.budget_bytes = 24 * kPage});
    std::atomic<uint64_t> loaded{0};
    sh_runtime* runtime = nullptr;
    SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime));
    for (const uint64_t covered : {uint64_t(0), kPage + 100}) {
        const Source source(device.get(), Origin::pinned, contents_of(1, 0, kPage + 100));
        sh_segment segment = const_cast<Source&>(source).segment(2 * kPage);
        segment.bytes = covered;
        for (const uint64_t bytes : {5 * kPage, uint64_t(4 * kPage - 1000)}) {
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = bytes;
            desc.segments = &segment;
            desc.segment_count = covered ? 1 : 0;
            desc.on_load = add_up;
            desc.user_data = &loaded;
            sh_block id = 0;
            SUCCEEDS(sh_register_blocks(runtime, &desc, 1, &id));
            loaded = 0;
            held_view(runtime, id);
            EXPECT_EQ(loaded.load(), bytes);
            let_go(runtime, id);
            SUCCEEDS(sh_unregister_blocks(runtime, &id, 1));
        }
    }
    sh_runtime_destroy(runtime);
}

int32_t fill_in(const sh_loaded_range* range, void* bytes) {
    const auto all_ones = [count = range->bytes](uint8_t* at) { std::fill(at, at + count, uint8_t(1)); };
    return static_cast<DeviceBytes*>(bytes)->change(range->stream, range->address, range->bytes, all_ones) == SH_OK
               ? 0
               : -1;
}

// The library copies nothing to the block in the middle. The callback's writes, and later copies to the same memory,
// still come after the uses of the earlier contents.
TEST(Loaded, what_no_segment_covers_is_written_after_earlier_uses_too) {
    const uint64_t kBytes = 6 * kPage;
    for (const bool calls_back : {true, false}) {
        SoloModel model({.budget_bytes = 8 * kPage}, equal_blocks(2, kBytes, Origin::pinned));
        sh_block_desc desc = SH_BLOCK_DESC_INIT;
        desc.bytes = kBytes;
        desc.on_load = calls_back ? fill_in : nullptr;
        desc.user_data = &model.bytes();
        sh_block between = 0;
        SUCCEEDS(sh_register_blocks(model.runtime(), &desc, 1, &between));
        std::vector<sh_use> order(3, SH_USE_INIT);
        order[0].block = model.id(0);
        order[1].block = between;
        order[2].block = model.id(1);
        SUCCEEDS(sh_set_schedule(model.runtime(), order.data(), order.size()));
        const sh_stream early = model.stream();
        for (int k = 0; k < 4; k++) {
            for (const size_t block : {0, 1}) {
                sh_view view = model.acquire(block, early);
                ASSERT_GT(model.state(block).streamed_bytes, 0u);
                SUCCEEDS(sh_stream_launch(model.device(), early, nullptr, nullptr, 5'000'000));
                SUCCEEDS(model.compare(block, view, early));
                model.release(block, early);
                if (block) continue;
                view = held_view(model.runtime(), between);
                if (calls_back) {
                    EXPECT_EQ(model.bytes().read(view.address, kBytes), std::vector<uint8_t>(kBytes, 1));
                }
                let_go(model.runtime(), between);
            }
        }
        model.synchronize();
    }
}

TEST(Failing, on_load_fails_and_recovers) {
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device({.budget_bytes = 8 * kPage});
        Patch patched{device, {}, {}, {}, {}, {}, {}, {}};
        std::vector<BlockSpec> specs = equal_blocks(4, 4 * kPage, origin);
        specs[2].on_load = patch;
        specs[2].user_data = &patched;
        specs[2].name = "adapter";
        Model model(device, specs);
        auto bytes = *model.truth(2);
        for (uint8_t& byte : bytes) byte++;
        model.set_truth(2, bytes);
        SUCCEEDS(model.schedule(forward(4)));
        patched.result = 7;
        EXPECT_REFUSED(model.step(forward(4)), SH_ERROR_CALLBACK, "adapter");
        EXPECT_EQ(model.state(2).held, 0u);
        patched.result = 0;
        sh_status status = SH_OK;
        for (int k = 0; k < 3; k++)
            status = model.step(forward(4));  // the error of a prefetch may be returned once more
        SUCCEEDS(status);
        EXPECT_GT(model.stats().failed_loads, 0u);
    }
}

}  // namespace
}  // namespace stagehand::test
