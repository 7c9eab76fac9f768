// The byte figures of plans: bytes that the link carries, bytes that need memory, and bytes of pages that no block
// covers.
#include <algorithm>
#include <numeric>
#include <random>

#include "../../stress/scale.h"
#include "engine.h"

namespace stagehand::test {
namespace {

int32_t nothing_to_do(const sh_loaded_range*, void*) { return 0; }

// Blocks of six pages whose sources cover one and a half pages. The device makes the rest.
class Covered {
public:
    Covered(TestDevice& device, uint32_t flags, size_t blocks) {
        EXPECT_SUCCEEDS(sh_host_alloc(device.get(), 2 * kPage, &memory_, nullptr));
        device_ = device.get();
        EXPECT_SUCCEEDS(sh_runtime_create(device.get(), nullptr, &runtime_));
        for (size_t i = 0; i < blocks; i++) {
            sh_segment segments[2] = {SH_SEGMENT_INIT, SH_SEGMENT_INIT};
            for (sh_segment& segment : segments) {
                segment.kind = SH_SOURCE_POINTER;
                segment.pointer = memory_;
            }
            segments[0].offset = kPage / 2;
            segments[0].bytes = kPage;
            segments[1].offset = 4 * kPage + 100;
            segments[1].bytes = kPage / 2;
            sh_block_desc desc = SH_BLOCK_DESC_INIT;
            desc.bytes = 6 * kPage;
            desc.flags = flags;
            desc.segments = segments;
            desc.segment_count = 2;
            desc.on_load = nothing_to_do;
            ids_.emplace_back();
            EXPECT_SUCCEEDS(sh_register_blocks(runtime_, &desc, 1, &ids_.back()));
        }
        std::vector<sh_use> uses(blocks, SH_USE_INIT);
        for (size_t i = 0; i < blocks; i++) uses[i] = {sizeof(sh_use), 0, ids_[i], 1000};
        EXPECT_SUCCEEDS(sh_set_schedule(runtime_, uses.data(), uses.size()));
    }
    ~Covered() {
        sh_runtime_destroy(runtime_);
        sh_host_free(device_, memory_);
    }
    Covered(const Covered&) = delete;
    Covered& operator=(const Covered&) = delete;

    void step() {
        SUCCEEDS(sh_step_begin(runtime_, nullptr));
        for (const sh_block id : ids_) {
            held_view(runtime_, id);
            let_go(runtime_, id);
        }
        SUCCEEDS(sh_step_end(runtime_));
    }
    sh_plan_info plan() {
        auto info = sh_sized<sh_plan_info>();
        EXPECT_SUCCEEDS(sh_plan(runtime_, nullptr, &info));
        return info;
    }
    uint64_t copied() {
        auto stats = sh_sized<sh_runtime_stats>();
        EXPECT_SUCCEEDS(sh_runtime_synchronize(runtime_));
        EXPECT_SUCCEEDS(sh_runtime_get_stats(runtime_, &stats));
        return stats.bytes_to_device;
    }
    const std::vector<sh_block>& ids() const { return ids_; }
    sh_runtime* runtime() const { return runtime_; }

private:
    sh_device* device_ = nullptr;
    sh_runtime* runtime_ = nullptr;
    void* memory_ = nullptr;
    std::vector<sh_block> ids_;
};

TEST(PlannedBytes, are_those_that_a_step_copies) {
    for (const uint32_t flags : {uint32_t(SH_BLOCK_WHOLE), 0u}) {
        for (const uint64_t protects : {0, 2, 5}) {  // five of them find no room for all of their bytes
            TestDevice device({.budget_bytes = 30 * kPage});
            Covered model(device, flags, 8);
            if (protects) {
                model.step();  // some of it is there
                SUCCEEDS(sh_protect_blocks(model.runtime(), model.ids().data(), protects, nullptr));
            }
            for (int k = 0; k < 3; k++) model.step();
            const sh_plan_info plan = model.plan();
            EXPECT_GT(plan.bytes_per_step, 0u);
            EXPECT_LE(plan.bytes_per_step, 8 * kPage * 3 / 2) << "all that there is to copy";
            EXPECT_LE(plan.bound_bytes_per_step, plan.bytes_per_step);
            const uint64_t before = model.copied();
            for (int k = 0; k < 5; k++) model.step();
            EXPECT_EQ(model.copied() - before, 5 * plan.bytes_per_step)
                << "flags " << flags << ", protected " << protects;
        }
    }
}

TEST(PlannedBytes, figures_are_those_of_the_plan) {
    std::vector<BlockSpec> specs = equal_blocks(10, 4 * kPage);
    for (int k = 0; k < 4; k++) specs.push_back({2 * kPage, Origin::pinned, SH_BLOCK_UNORDERED});
    SoloModel model({.budget_bytes = 26 * kPage}, specs, {}, {.unordered_bytes = 6 * kPage});
    SUCCEEDS(model.schedule(forward(10), 1000));
    const sh_plan_info plan = model.plan();
    EXPECT_EQ(plan.model_bytes, 48 * kPage);
    EXPECT_EQ(plan.budget_bytes, 26 * kPage);
    EXPECT_EQ(plan.unordered_bytes, 6 * kPage);
    EXPECT_GT(plan.ring_bytes, 0u);
    EXPECT_LE(plan.resident_bytes + plan.ring_bytes, 20 * kPage);
    EXPECT_GE(plan.bound_bytes_per_step, 20 * kPage) << "that find no place";
    EXPECT_LE(plan.bound_bytes_per_step, plan.bytes_per_step);
    EXPECT_EQ(plan.compute_ns, 10'000u);
    EXPECT_EQ(plan.scheduled_blocks, 10u);
    EXPECT_EQ(plan.resident_blocks + plan.streamed_blocks, 10u);
    EXPECT_EQ(plan.padding_bytes, 0u);
}

TEST(Padding, is_told) {
    uint64_t padding[2] = {}, resident[2] = {};
    for (const bool together : {false, true}) {
        const std::vector<BlockSpec> specs = equal_blocks(100, kPage / 8);
        SoloModel model({.budget_bytes = 80 * kPage}, together ? specs : std::vector<BlockSpec>{});
        for (size_t i = 0; !together && i < specs.size(); i++) SUCCEEDS(model.add(specs[i]));
        SUCCEEDS(model.schedule(forward(100)));
        const sh_plan_info plan = model.plan();
        padding[together] = plan.padding_bytes;
        resident[together] = plan.resident_bytes;
        EXPECT_EQ(plan.resident_bytes, plan.model_bytes + plan.padding_bytes);
        SUCCEEDS(model.step(forward(100)));
        // The place of an unregistered block beside others stays empty.
        SUCCEEDS(model.remove(50));
        EXPECT_EQ(model.plan(80 * kPage).padding_bytes, padding[together] + kPage / 8);
    }
    EXPECT_EQ(padding[0], padding[1]);
    EXPECT_EQ(resident[0], resident[1]);
    EXPECT_LE(resident[0], 15 * kPage);
}

// Two blocks share a page, so twice as many blocks fit. Then all blocks that are used fit.
TEST(Packing, experts_of_half_a_page_share_pages) {
    SoloModel model({.budget_bytes = 30 * kPage}, equal_blocks(4, 3 * kPage), {}, {.unordered_bytes = 6 * kPage});
    for (size_t i = 0; i < 40; i++) SUCCEEDS(model.add({kPage / 2, kOrigins[i % 5], SH_BLOCK_UNORDERED}));
    SUCCEEDS(model.schedule(forward(4)));
    const sh_stream stream = model.stream();
    const auto step = [&] {
        std::vector<size_t> order = forward(4);
        for (size_t i = 4; i < 16; i++) order.push_back(i);  // of the forty, these twelve
        SUCCEEDS(model.step(order, stream));
    };
    for (int k = 0; k < 3; k++) step();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t before = model.stats().bytes_to_device;
    for (int k = 0; k < 5; k++) step();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().bytes_to_device, before);
    model.synchronize();
    EXPECT_LE(model.memory().peak_bytes, 30 * kPage);
}

// All bytes are right, whichever block joins or leaves a pack at any time.
TEST(Packing, small_blocks_come_and_go) {
    for (const uint64_t budget : {9, 60}) {
        // A block that joins in a step is outside the order until the next one, and the plan of this step counts
        // without it.
        SoloModel model({.budget_bytes = budget * kPage}, unequal_blocks(4, Origin::pageable), {},
                        {.unordered_bytes = 2 * kPage});
        std::vector<size_t> there = forward(4);
        const sh_stream stream = model.stream();
        std::mt19937 random(7);
        for (uint64_t k = 0; k < shortened(60); k++) {
            const bool in_step = random() % 2;
            if (in_step) model.begin_step();
            for (size_t n = random() % 4; n > 0; n--) {
                const uint64_t bytes = 1 + random() % (random() % 3 ? kPage / 3 : 2 * kPage);
                SUCCEEDS(model.add({bytes, kOrigins[random() % 5], random() % 3 ? 0 : uint32_t(SH_BLOCK_UNORDERED)}));
                there.push_back(model.size() - 1);
                if (random() % 2) {
                    SUCCEEDS(model.use(there.back(), stream));
                }
            }
            for (size_t n = random() % 4; n > 0 && there.size() > 4; n--) {
                const size_t at = random() % there.size();
                SUCCEEDS(model.remove(there[at]));
                there.erase(there.begin() + static_cast<ptrdiff_t>(at));
            }
            for (const size_t i : there) {
                if (random() % 4) {
                    SUCCEEDS(model.use(i, random() % 2 ? stream : SH_STREAM_HOST));
                }
            }
            if (in_step) model.end_step();
            SUCCEEDS(model.step(there, stream));
            EXPECT_LE(model.memory().peak_bytes, budget * kPage);
        }
        model.synchronize();
    }
}

// The library measures a step if the schedule has no times.
TEST(ComputeTimes, are_those_of_the_streams) {
    SoloModel model({.budget_bytes = 9 * kPage}, equal_blocks(4, 4 * kPage));
    SUCCEEDS(model.schedule(forward(4), 0));
    EXPECT_EQ(model.plan().compute_ns, 0u);
    const sh_stream stream = model.stream();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(4), stream, 5'000'000));
    EXPECT_GE(model.plan().compute_ns, 10'000'000u);
}

// A budget of as many bytes as the blocks have lacks only the pages that the ends of blocks do not fill.
TEST(PlannedBytes, of_a_model_that_lacks_its_padding_are_few) {
    if (!on_host_backend()) GTEST_SKIP() << "the test needs a known cost of a copy";
    std::mt19937 random(1);
    std::vector<uint64_t> sizes(204);
    for (uint64_t& size : sizes) size = 2 * kPage + random() % (41 * kPage);
    const auto all = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});
    DeviceSettings settings{.budget_bytes = all};
    settings.link_bytes_per_second = 10'000'000'000;
    SoloModel model(settings, blocks_of(sizes));
    SUCCEEDS(model.schedule(forward(sizes.size()), 500));
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(sizes.size())));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t before = model.stats().bytes_to_device;
    SUCCEEDS(model.step(forward(sizes.size())));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().bytes_to_device - before, model.plan().bytes_per_step);
    EXPECT_LE(model.plan().bytes_per_step, all / 30);
    EXPECT_LE(model.plan().step_ns, model.plan().compute_ns * 11 / 10);
    EXPECT_LE(model.memory().peak_bytes, all);
}

}  // namespace
}  // namespace stagehand::test
