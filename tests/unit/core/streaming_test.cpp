// A model larger than its budget comes through the ring byte for byte, with every kind of source, block and order.
#include <algorithm>
#include <random>

#include "engine.h"

namespace stagehand::test {
namespace {

struct Way {
    Origin origin;
    bool on_stream;
};

std::string way_name(const testing::TestParamInfo<Way>& info) {
    return name_of(info.param.origin) + (info.param.on_stream ? "_stream" : "_host");
}

class Streaming : public testing::TestWithParam<Way> {
protected:
    static sh_stream stream_of(Model& model) { return GetParam().on_stream ? model.stream() : SH_STREAM_HOST; }
    // Runs steps of this order and expects every byte right and the budget kept.
    void run(Model& model, const std::vector<size_t>& order, int steps) {
        const sh_stream stream = stream_of(model);
        for (int k = 0; k < steps; k++) {
            SUCCEEDS(model.step(order, stream));
            const sh_memory_info memory = model.memory();
            ASSERT_LE(memory.used_bytes, memory.budget_bytes);
            ASSERT_LE(memory.peak_bytes, memory.budget_bytes);
        }
        model.synchronize();
        EXPECT_EQ(model.compared(), order.size() * steps);
        EXPECT_SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    }
};

TEST_P(Streaming, learns_the_order) {
    SoloModel model({.budget_bytes = 24 * kPage}, unequal_blocks(20, GetParam().origin));
    run(model, forward(20), 4);
    const sh_plan_info plan = model.plan();
    EXPECT_EQ(plan.scheduled_blocks, 20u);
    EXPECT_GT(plan.streamed_blocks, 0u);
}

TEST_P(Streaming, order_is_only_a_hint) {
    SoloModel model({.budget_bytes = 24 * kPage}, unequal_blocks(20, GetParam().origin), forward(20));
    const sh_stream stream = stream_of(model);
    std::mt19937 random(7);
    for (int k = 0; k < 12; k++) {
        std::vector<size_t> order = forward(20);
        std::shuffle(order.begin(), order.end(), random);
        if (k % 3 == 0) order.resize(9);                            // some skipped
        if (k % 3 == 1) order.insert(order.begin() + 4, order[3]);  // one twice in a row
        SUCCEEDS(model.step(order, stream));
    }
}

TEST_P(Streaming, smallest_budget_runs) {
    SoloModel model({.budget_bytes = 10 * kPage}, equal_blocks(9, 10 * kPage, GetParam().origin), forward(9));
    EXPECT_EQ(model.plan(10 * kPage).smallest_budget_bytes, 10 * kPage);
    run(model, forward(9), 4);
}

INSTANTIATE_TEST_SUITE_P(Ways, Streaming,
                         testing::Values(Way{Origin::pinned, false}, Way{Origin::pinned, true},
                                         Way{Origin::pageable, false}, Way{Origin::pageable, true},
                                         Way{Origin::mapped, false}, Way{Origin::mapped, true},
                                         Way{Origin::file, false}, Way{Origin::file, true}, Way{Origin::fill, false},
                                         Way{Origin::fill, true}),
                         way_name);

TEST(Steps, addresses_stay_and_are_aligned) {
    if (devices_without_pages()) GTEST_SKIP() << "addresses change with the plan on this device";
    SoloModel model({.budget_bytes = 20 * kPage}, unequal_blocks(20, Origin::pinned), forward(20));
    std::vector<void*> addresses(20);
    for (int k = 0; k < 3; k++) {
        model.begin_step();
        for (size_t i = 0; i < 20; i++) {
            sh_view view = model.acquire(i);
            EXPECT_TRUE(view.flags & SH_VIEW_FIXED_ADDRESS);
            EXPECT_EQ(reinterpret_cast<uintptr_t>(view.address) % 256, 0u);
            EXPECT_EQ(view.bytes, model.bytes(i));
            if (k) {
                EXPECT_EQ(view.address, addresses[i]);
            }
            addresses[i] = view.address;
            EXPECT_EQ(model.state(i).address, view.address);
            model.release(i);
        }
        model.end_step();
    }
}

TEST(Steps, what_is_still_in_the_ring_is_not_copied_again) {
    SoloModel model({.budget_bytes = 16 * kPage}, equal_blocks(10, 4 * kPage), forward_backward(10));
    for (int k = 0; k < 4; k++) SUCCEEDS(model.step(forward_backward(10)));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t before = model.stats().bytes_to_device;
    for (int k = 0; k < 4; k++) SUCCEEDS(model.step(forward_backward(10)));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const sh_plan_info plan = model.plan();
    // Around both turns the last blocks are there already.
    EXPECT_LT(plan.bytes_per_step, 2 * (model.total_bytes() - 16 * kPage) + 8 * kPage);
    EXPECT_LE(model.stats().bytes_to_device - before, 4 * plan.bytes_per_step + 16 * kPage);
}

TEST(Steps, twice_in_a_row_is_loaded_once) {
    SoloModel model({.budget_bytes = 6 * kPage}, equal_blocks(6, 6 * kPage));
    const std::vector<size_t> order = {0, 1, 2, 3, 3, 3, 4, 5};
    SUCCEEDS(model.schedule(order));
    for (int k = 0; k < 3; k++) {
        model.begin_step();
        uint64_t serial = 0;
        for (size_t n = 0; n < order.size(); n++) {
            sh_view view = model.acquire(order[n]);
            if (n == 4 || n == 5) {
                EXPECT_EQ(view.flags & SH_VIEW_HIT, uint32_t(SH_VIEW_HIT));
                EXPECT_EQ(view.serial, serial);
            }
            serial = view.serial;
            model.release(order[n]);
        }
        model.end_step();
    }
}

TEST(Steps, prefetch_crosses_the_steps_end) {
    SoloModel model({.budget_bytes = 20 * kPage}, equal_blocks(10, 4 * kPage), forward(10));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(10)));
    const uint64_t before = model.stats().misses;
    for (int k = 0; k < 5; k++) SUCCEEDS(model.step(forward(10)));
    EXPECT_EQ(model.stats().misses, before) << "an acquire had to begin its load itself";
    EXPECT_EQ(model.stats().hits, 8u * 10 - before);
}

TEST(Steps, serial_grows_with_each_load) {
    SoloModel model({.budget_bytes = 8 * kPage}, equal_blocks(8, 6 * kPage), forward(8));
    std::vector<uint64_t> serials(8);
    for (int k = 0; k < 3; k++) {
        model.begin_step();
        for (size_t i = 0; i < 8; i++) {
            sh_view view = model.acquire(i);
            if (model.state(i).streamed_bytes) {
                EXPECT_GT(view.serial, serials[i]) << "block " << i << ", step " << k;
            }
            serials[i] = view.serial;
            model.release(i);
        }
        model.end_step();
    }
}

// The second load uses the record of the first, which workers have filled.
TEST(Statistics, count_the_bytes_of_each_load_once) {
    SoloModel model({}, {{.bytes = 3 * kPage, .origin = Origin::pageable}, {.bytes = 5 * kPage}});
    uint64_t bytes = 0, pieces = 0;
    for (size_t i = 0; i < 2; i++) {
        SUCCEEDS(model.use(i));
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        bytes += model.bytes(i);
        EXPECT_EQ(model.stats().bytes_to_device, bytes);
        if (i == 1) {
            EXPECT_EQ(model.stats().load_pieces, pieces + 1);
        }
        pieces = model.stats().load_pieces;
    }
}

TEST(Steps, read_block_reads_what_the_stream_has_seen) {
    SoloModel model({.budget_bytes = 8 * kPage}, unequal_blocks(6, Origin::pageable));
    const sh_stream stream = model.stream();
    for (size_t i = 0; i < model.size(); i++) {
        sh_view view = model.acquire(i, stream);
        std::vector<uint8_t> bytes(view.bytes);
        SUCCEEDS(sh_read_block(model.runtime(), model.id(i), stream, 0, bytes.data(), bytes.size()));
        EXPECT_EQ(bytes, *model.truth(i));
        model.release(i, stream);
    }
}

// An engine that polls uses each block once. The library learns the order as if the engine had waited, and counts each
// load that was needed as a miss.
TEST(Polling, counts_each_use_once) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=500us";
    SoloModel model(slow, equal_blocks(8, 4 * kPage, Origin::pageable));
    for (int k = 0; k < 6; k++) {
        model.begin_step();
        for (size_t i = 0; i < 8; i++) {
            sh_status status = SH_NOT_READY;
            while (status == SH_NOT_READY) status = model.use(i, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT);
            SUCCEEDS(status);
        }
        model.end_step();
    }
    EXPECT_EQ(model.stats().acquires, 48u);
    EXPECT_EQ(model.stats().hits + model.stats().misses, 48u);
    EXPECT_GE(model.stats().misses, 8u) << "nothing is there in the first step";
    EXPECT_EQ(model.plan().scheduled_blocks, 8u);
    EXPECT_LE(model.stats().plans, 3u) << "the order was learned anew although it never changed";
}

// A read on the host sees the bytes of the view, even if the view is on another stream and its load is under way.
TEST(Reading, waits_for_the_load_whatever_stream_the_view_is_on) {
    DeviceSettings slow{.budget_bytes = 12 * kPage};
    slow.options += ";latency=5ms";
    SoloModel model(slow, equal_blocks(4, 6 * kPage, Origin::pinned), forward(4));
    const sh_stream stream = model.stream();
    for (size_t i = 0; i < 4; i++) {
        sh_view view = model.acquire(i, stream);
        std::vector<uint8_t> bytes(view.bytes);
        SUCCEEDS(sh_read_block(model.runtime(), model.id(i), SH_STREAM_HOST, 0, bytes.data(), bytes.size()));
        EXPECT_EQ(bytes, *model.truth(i)) << "block " << i;
        model.release(i, stream);
    }
}

}  // namespace
}  // namespace stagehand::test
