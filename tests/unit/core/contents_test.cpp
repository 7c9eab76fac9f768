// Contents that change: sources that get other bytes, on_load, and blocks that the engine changes itself.
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

// A block's serial as its next view tells it.
uint64_t serial_of(Model& model, size_t i) {
    sh_view view = SH_VIEW_INIT;
    EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
    EXPECT_SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
    return view.serial;
}

class Contents : public testing::TestWithParam<std::tuple<Origin, uint64_t>> {
protected:
    // Some pages are enough for everything, some for a part.
    DeviceSettings settings() const { return {.budget_bytes = std::get<1>(GetParam()) * kPage}; }
    Origin origin() const { return std::get<0>(GetParam()); }
};

TEST_P(Contents, invalidated_blocks_are_loaded_anew) {
    TestDevice device(settings());
    Model model(device, unequal_blocks(10, origin()));
    SUCCEEDS(model.schedule(forward(10)));
    const sh_stream stream = device.stream();
    for (uint64_t k = 1; k < 6; k++) {
        SUCCEEDS(model.step(forward(10), stream));
        device.synchronize();
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        for (const size_t i : {size_t(0), size_t(3), size_t(7)}) {
            model.change(i, k);
            const sh_block id = model.id(i);
            SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
        }
        SUCCEEDS(model.use(3, stream));
    }
    SUCCEEDS(model.step(forward(10)));
    device.synchronize();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_P(Contents, a_source_changes_between_begin_and_end) {
    TestDevice device(settings());
    Model model(device, unequal_blocks(10, origin()));
    SUCCEEDS(model.schedule(forward(10)));
    for (uint64_t k = 1; k < 6; k++) {
        SUCCEEDS(model.step(forward(10)));
        const sh_block ids[] = {model.id(4), model.id(9)};
        SUCCEEDS(sh_source_update_begin(model.runtime(), ids, 2));
        model.change(4, k);
        model.change(9, k);
        EXPECT_EQ(model.use(4), SH_ERROR_BUSY);
        EXPECT_EQ(sh_source_update_begin(model.runtime(), ids, 1), SH_ERROR_INVALID_STATE);
        SUCCEEDS(sh_source_update_end(model.runtime(), ids, 2));
        EXPECT_EQ(sh_source_update_end(model.runtime(), ids, 1), SH_ERROR_INVALID_STATE);
    }
    SUCCEEDS(model.step(forward(10)));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST_P(Contents, a_view_keeps_what_it_sees) {
    TestDevice device(settings());
    Model model(device, equal_blocks(6, 3 * kPage, origin()));
    SUCCEEDS(model.schedule(forward(6)));
    SUCCEEDS(model.step(forward(6)));
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(2), SH_STREAM_HOST, 0, &view));
    const auto before = model.truth(2);
    model.change(2, 1);
    const sh_block id = model.id(2);
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(device.bytes().read(view.address, before->size()), *before);
    // It would have to be loaded over a view that is held.
    EXPECT_EQ(model.use(2), SH_ERROR_HELD);
    SUCCEEDS(sh_release(model.runtime(), model.id(2), SH_STREAM_HOST));
    SUCCEEDS(model.use(2));
    EXPECT_GT(serial_of(model, 2), view.serial);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

class DirtyContents : public Contents {};   // whose sources can be written

TEST_P(DirtyContents, dirty_blocks_are_written_back) {
    TestDevice device(settings());
    Model model(device, [&] {
        auto specs = unequal_blocks(12, origin());
        for (BlockSpec& spec : specs) spec.flags = SH_BLOCK_MUTABLE;
        return specs;
    }());
    SUCCEEDS(model.schedule(forward_backward(12)));
    uint64_t version = 0;
    for (int k = 0; k < 4; k++) {
        SUCCEEDS(sh_step_begin(model.runtime()));
        for (const size_t i : forward_backward(12)) {
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
            SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
            if ((i + k) % 2) {
                SUCCEEDS(model.overwrite(i, view, ++version));
            }
            SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
    }
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    for (size_t i = 0; i < 12; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    const sh_runtime_stats stats = model.stats();
    EXPECT_GT(stats.write_backs, 0u);
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.stats().write_backs, stats.write_backs) << "clean blocks were written";
}

TEST_P(DirtyContents, a_plan_and_a_budget_lose_nothing_dirty) {
    TestDevice device(settings());
    Model model(device, equal_blocks(6, 3 * kPage, origin(), SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(6)));
    uint64_t version = 0;
    for (const uint64_t pages : {12, 40, 3, 20}) {
        SUCCEEDS(sh_step_begin(model.runtime()));
        for (size_t i = 0; i < 6; i++) {
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
            SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
            SUCCEEDS(model.overwrite(i, view, ++version));
            SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
        }
        SUCCEEDS(sh_step_end(model.runtime()));
        SUCCEEDS(sh_device_set_budget(device.get(), pages * kPage));
    }
    // Unregistering writes back as well.
    SUCCEEDS(sh_unregister_blocks(model.runtime(), model.ids().data(), 6));
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

INSTANTIATE_TEST_SUITE_P(Sources, Contents,
                         testing::Combine(testing::ValuesIn(kOrigins), testing::Values(uint64_t(11), uint64_t(60))),
                         [](const auto& info) { return name_of(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param)); });

INSTANTIATE_TEST_SUITE_P(Sources, DirtyContents,
                         testing::Combine(testing::Values(Origin::pinned, Origin::pageable), testing::Values(uint64_t(11), uint64_t(60))),
                         [](const auto& info) { return name_of(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param)); });

TEST(Dirty, what_a_neighbour_changed_survives_an_invalidation) {
    // Both are small, and share a page.
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device;
        Model model(device, equal_blocks(2, 900, origin, SH_BLOCK_MUTABLE));
        sh_view view = SH_VIEW_INIT;
        SUCCEEDS(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view));
        SUCCEEDS(model.overwrite(0, view, 1));
        SUCCEEDS(sh_release(model.runtime(), model.id(0), SH_STREAM_HOST));
        model.change(1, 1);
        const sh_block id = model.id(1);
        SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
        SUCCEEDS(model.use(0));
        SUCCEEDS(model.use(1));
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

// The bytes of an older write-back, still under way, never come after those of a newer one.
TEST(Dirty, again_while_it_is_written_back) {
    DeviceSettings slow{.budget_bytes = 6 * kPage};
    slow.options += ";latency=300us";
    TestDevice device(slow);
    Model model(device, equal_blocks(3, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(3)));
    uint64_t version = 0;
    for (int k = 0; k < 20; k++) {
        for (int n = 0; n < 3; n++) {
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, 0, &view));
            SUCCEEDS(model.compare(1, view, SH_STREAM_HOST));
            SUCCEEDS(model.overwrite(1, view, ++version));
            SUCCEEDS(sh_release(model.runtime(), model.id(1), SH_STREAM_HOST));
        }
        SUCCEEDS(k % 2 ? model.use(2) : sh_write_back(model.runtime(), nullptr, 0));
    }
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// A write-back brings what streams have yet to do, too.
TEST(Dirty, what_a_late_stream_changes_is_written_back) {
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        TestDevice device;
        Model model(device, equal_blocks(1, 3 * kPage, origin, SH_BLOCK_MUTABLE));
        const sh_stream stream = device.stream();
        for (uint64_t version = 1; version < 4; version++) {
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(model.runtime(), model.id(0), stream, 0, &view));
            SUCCEEDS(sh_stream_launch(device.get(), stream, nullptr, nullptr, 5'000'000));
            SUCCEEDS(model.overwrite(0, view, version, stream));
            SUCCEEDS(sh_release(model.runtime(), model.id(0), stream));
            SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
            EXPECT_EQ(model.source(0).read(), *model.truth(0)) << name_of(origin) << ", version " << version;
        }
    }
}

TEST(Dirty, misplaced_calls_are_refused) {
    TestDevice device;
    auto specs = equal_blocks(2, 3 * kPage);
    specs[0].flags = SH_BLOCK_MUTABLE;
    Model model(device, specs);
    EXPECT_EQ(sh_mark_dirty(model.runtime(), model.id(0)), SH_ERROR_INVALID_STATE);
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, 0, &view));
    EXPECT_EQ(sh_mark_dirty(model.runtime(), model.id(1)), SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_release(model.runtime(), model.id(1), SH_STREAM_HOST));
    SUCCEEDS(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view));
    SUCCEEDS(sh_mark_dirty(model.runtime(), model.id(0)));
    EXPECT_EQ(sh_write_back(model.runtime(), nullptr, 0), SH_ERROR_BUSY);
    SUCCEEDS(sh_release(model.runtime(), model.id(0), SH_STREAM_HOST));
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
}

// Holds a stream up until it is opened.
class Gate {
public:
    Gate(TestDevice& device, sh_stream stream) { EXPECT_SUCCEEDS(sh_stream_launch(device.get(), stream, wait, this, -1)); }
    ~Gate() { open(); }
    void open() { open_ = true; }

private:
    static void wait(void* self) {
        while (!static_cast<Gate*>(self)->open_) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::atomic<bool> open_{false};
};

// Leaves a write-back of the block under way, which waits for the gate.
void write_behind(Model& model, size_t i, sh_stream stream) {
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(i), stream, 0, &view));
    SUCCEEDS(sh_mark_dirty(model.runtime(), model.id(i)));
    SUCCEEDS(sh_release(model.runtime(), model.id(i), stream));
}

TEST(Dirty, a_second_write_back_waits_for_the_first) {
    TestDevice device({.budget_bytes = 6 * kPage});
    Model model(device, equal_blocks(3, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(3)));
    SUCCEEDS(model.use(1));
    const sh_stream stream = device.stream();
    Gate gate(device, stream);
    write_behind(model, 1, stream);
    EXPECT_EQ(model.state(1).state, uint32_t(SH_BLOCK_DRAINING));
    const uint64_t before = model.stats().write_backs;
    sh_view view = SH_VIEW_INIT;
    // What the engine does on another stream comes after what the write-back reads; the host would have to wait.
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view), SH_NOT_READY);
    const sh_stream later = device.stream();
    SUCCEEDS(sh_acquire(model.runtime(), model.id(1), later, 0, &view));
    SUCCEEDS(model.overwrite(1, view, 1, later));
    SUCCEEDS(sh_release(model.runtime(), model.id(1), later));
    EXPECT_EQ(model.stats().write_backs, before) << "two write-backs of one block at once";
    gate.open();
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
    SUCCEEDS(model.step(forward(3)));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST(Dirty, an_invalidation_waits_for_a_neighbour_that_is_dirty_again) {
    TestDevice device({.budget_bytes = 6 * kPage});
    // The first two share a unit, which streams.
    Model model(device, blocks_of({900, 900, 6 * kPage, 6 * kPage}, Origin::pageable, SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(4)));
    const sh_stream stream = device.stream();
    Gate gate(device, stream);
    write_behind(model, 0, stream);
    const sh_stream later = device.stream();
    sh_view view = SH_VIEW_INIT;
    SUCCEEDS(sh_acquire(model.runtime(), model.id(0), later, 0, &view));
    SUCCEEDS(model.overwrite(0, view, 1, later));
    SUCCEEDS(sh_release(model.runtime(), model.id(0), later));
    model.change(1, 1);
    const sh_block id = model.id(1);
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
    gate.open();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(4)));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// A plan changes, and waits for a write-back; nobody may take a view of what it is about to move.
TEST(Dirty, no_view_is_taken_while_a_plan_changes) {
    TestDevice device({.budget_bytes = 30 * kPage});
    Model model(device, equal_blocks(5, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE));
    SUCCEEDS(model.schedule(forward(5)));
    for (size_t i = 0; i < 5; i++) SUCCEEDS(model.use(i));
    const sh_stream stream = device.stream();
    Gate gate(device, stream);
    write_behind(model, 1, stream);
    SUCCEEDS(model.schedule({4, 3, 2, 1, 0, 1, 2}));
    std::thread planner([&] { EXPECT_SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::thread user([&] {
        sh_view view = SH_VIEW_INIT;
        for (const size_t i : {size_t(3), size_t(0), size_t(4)}) {
            EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
            for (int k = 0; k < 20; k++) {
                EXPECT_SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            EXPECT_SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
        }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(model.compared(), 5u) << "a view was taken while the plan changes";
    gate.open();
    planner.join();
    user.join();
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// Adds one to each byte of what was loaded, in the copy stream.
struct Patch {
    TestDevice& device;
    std::mutex mutex;
    std::map<sh_block, uint8_t*> address;                // of the block, as told
    std::map<sh_block, std::vector<uint32_t>> patched;   // per byte, since the last look
    std::atomic<int32_t> result{0};
    std::atomic<uint64_t> calls{0}, outside{0}, cut{0};
};
int32_t patch(const sh_loaded_range* range, void* data) {
    Patch& patch = *static_cast<Patch*>(data);
    patch.calls++;
    if (patch.result) return patch.result;
    if (range->offset > range->block_bytes || range->bytes > range->block_bytes - range->offset || range->stream == SH_STREAM_HOST) patch.outside++;
    const uint64_t unit = range->block_bytes < 2 * kPage ? 256 : kPage, end = range->offset + range->bytes;   // small blocks may share pages
    if (range->offset % unit || (end % unit && end != range->block_bytes) || reinterpret_cast<uintptr_t>(range->address) % 256) patch.cut++;
    {
        std::lock_guard lock(patch.mutex);
        uint8_t* const begin = static_cast<uint8_t*>(range->address) - range->offset;
        uint8_t*& address = patch.address[range->block];
        if (address && address != begin && !plain_devices()) patch.outside++;
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
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    EXPECT_EQ(patched.outside.load(), 0u);
    EXPECT_EQ(patched.cut.load(), 0u) << "a range that neither the block nor a page bounds";
    EXPECT_GE(patched.patched.size(), 10u);
    for (size_t i = 0; i < 10; i++) {
        void* const now = model.state(i).address;
        EXPECT_TRUE(now == patched.address[model.id(i)] || (!now && plain_devices())) << "block " << i;
    }
    if (flags & SH_BLOCK_WHOLE) {
        for (const auto& [block, counts] : patched.patched)
            EXPECT_EQ(*std::min_element(counts.begin(), counts.end()), *std::max_element(counts.begin(), counts.end())) << "a part of a whole block";
    }
}

INSTANTIATE_TEST_SUITE_P(Ways, OnLoad,
                         testing::Combine(testing::Values(Origin::pinned, Origin::file, Origin::fill), testing::Values(uint64_t(12), uint64_t(60)),
                                          testing::Values(0u, uint32_t(SH_BLOCK_WHOLE), uint32_t(SH_BLOCK_UNORDERED))));

// A block whose segment covers a part of it only: the rest is the callback's, and is asked for as well.
struct Expanded {
    DeviceBytes& bytes;
    std::atomic<uint64_t> calls{0}, in_parts{0};
};
int32_t expand(const sh_loaded_range* range, void* data) {
    Expanded& expanded = *static_cast<Expanded*>(data);
    expanded.calls++;
    if (range->offset || range->bytes != range->block_bytes) expanded.in_parts++;
    // Two values of four bits in each byte of the block's second half; where it is written last, it has been read.
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
            SUCCEEDS(sh_step_begin(runtime));
            for (size_t i = 0; i < kBlocks; i++) {
                sh_view view = SH_VIEW_INIT;
                SUCCEEDS(sh_acquire(runtime, ids[i], SH_STREAM_HOST, 0, &view));
                EXPECT_EQ(device.bytes().read(view.address, large), truth[i]) << "block " << i << " in step " << k;
                SUCCEEDS(sh_release(runtime, ids[i], SH_STREAM_HOST));
            }
            SUCCEEDS(sh_step_end(runtime));
        }
        SUCCEEDS(sh_runtime_synchronize(runtime));
        sh_runtime_stats stats = SH_RUNTIME_STATS_INIT;
        SUCCEEDS(sh_stats(runtime, &stats));
        EXPECT_EQ(expanded.in_parts.load(), 0u);
        EXPECT_EQ(expanded.calls.load(), stats.loads) << "once for each load";
        EXPECT_EQ(stats.bytes_to_device, stats.loads * packed) << "only what is compressed goes over the link";
        sh_runtime_destroy(runtime);
        device.synchronize();
    }
}

int32_t add_up(const sh_loaded_range* range, void* sum) {
    static_cast<std::atomic<uint64_t>*>(sum)->fetch_add(range->bytes);
    return 0;
}

// Also a block that has no source at all.
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
            sh_view view = SH_VIEW_INIT;
            SUCCEEDS(sh_acquire(runtime, id, SH_STREAM_HOST, 0, &view));
            EXPECT_EQ(loaded.load(), bytes);
            SUCCEEDS(sh_release(runtime, id, SH_STREAM_HOST));
            SUCCEEDS(sh_unregister_blocks(runtime, &id, 1));
        }
    }
    sh_runtime_destroy(runtime);
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
        EXPECT_EQ(model.step(forward(4)), SH_ERROR_CALLBACK);
        EXPECT_NE(why().find("adapter"), std::string::npos) << why();
        EXPECT_EQ(model.state(2).held, 0u);
        patched.result = 0;
        sh_status status = SH_OK;
        for (int k = 0; k < 3; k++) status = model.step(forward(4));   // a prefetch that failed may be told once more
        SUCCEEDS(status);
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
        EXPECT_GT(model.stats().failed_loads, 0u);
    }
}

TEST(Failing, a_fill_callback_fails_and_recovers) {
    TestDevice device({.budget_bytes = 8 * kPage});
    Model model(device, equal_blocks(4, 4 * kPage, Origin::fill));
    SUCCEEDS(model.schedule(forward(4)));
    model.source(1).fill_result = 5;
    EXPECT_EQ(model.step(forward(4)), SH_ERROR_CALLBACK) << why();
    model.source(1).fill_result = 0;
    sh_status status = SH_OK;
    for (int k = 0; k < 3; k++) status = model.step(forward(4));
    SUCCEEDS(status);
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

TEST(Failing, a_file_that_shrinks_is_an_error) {
    for (const Origin origin : {Origin::file, Origin::mapped}) {
        TestDevice device({.budget_bytes = 8 * kPage});
        Model model(device, equal_blocks(4, 4 * kPage, origin));
        SUCCEEDS(model.schedule(forward(4)));
        ASSERT_TRUE(model.source(2).shrink(kPage));
        EXPECT_EQ(model.step(forward(4)), SH_ERROR_SOURCE) << why();
        ASSERT_TRUE(model.source(2).shrink(4 * kPage));
        model.change(2, 3);
        const sh_block id = model.id(2);
        SUCCEEDS(sh_invalidate_blocks(model.runtime(), &id, 1));
        sh_status status = SH_OK;
        for (int k = 0; k < 3; k++) status = model.step(forward(4));
        SUCCEEDS(status);
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
}

}  // namespace
}  // namespace stagehand::test
