// Contents that change: sources that get other bytes or fail, and blocks that the engine changes itself.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

// Returns the serial that the block's next view has.
uint64_t serial_of(Model& model, size_t i) {
    auto view = sh_sized<sh_view>();
    EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view));
    EXPECT_SUCCEEDS(sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
    return view.serial;
}

class Contents : public testing::TestWithParam<std::tuple<Origin, uint64_t>> {
protected:
    // Some of the page counts have room for all blocks, others only for a part.
    DeviceSettings settings() const { return {.budget_bytes = std::get<1>(GetParam()) * kPage}; }
    Origin origin() const { return std::get<0>(GetParam()); }
};

TEST_P(Contents, invalidated_blocks_are_loaded_anew) {
    SoloModel model(settings(), unequal_blocks(10, origin()), forward(10));
    const sh_stream stream = model.stream();
    for (uint64_t k = 1; k < 6; k++) {
        SUCCEEDS(model.step(forward(10), stream));
        model.synchronize();
        SUCCEEDS(sh_runtime_synchronize(model.runtime()));
        for (const size_t i : {size_t(0), size_t(3), size_t(7)}) {
            model.change(i, k);
            model.invalidate(i);
        }
        SUCCEEDS(model.use(3, stream));
    }
    SUCCEEDS(model.step(forward(10)));
}

TEST_P(Contents, a_source_changes_between_begin_and_end) {
    SoloModel model(settings(), unequal_blocks(10, origin()), forward(10));
    for (uint64_t k = 1; k < 6; k++) {
        SUCCEEDS(model.step(forward(10)));
        const sh_block ids[] = {model.id(4), model.id(9)};
        SUCCEEDS(sh_source_update_begin(model.runtime(), ids, 2));
        model.change(4, k);
        model.change(9, k);
        EXPECT_EQ(model.use(4), SH_ERROR_INVALID_STATE);
        EXPECT_EQ(sh_source_update_begin(model.runtime(), ids, 1), SH_ERROR_INVALID_STATE);
        SUCCEEDS(sh_source_update_end(model.runtime(), ids, 2));
        EXPECT_EQ(sh_source_update_end(model.runtime(), ids, 1), SH_ERROR_INVALID_STATE);
    }
    SUCCEEDS(model.step(forward(10)));
}

TEST_P(Contents, a_view_keeps_what_it_sees) {
    SoloModel model(settings(), equal_blocks(6, 3 * kPage, origin()), forward(6));
    SUCCEEDS(model.step(forward(6)));
    sh_view view = model.acquire(2);
    const auto before = model.truth(2);
    model.change(2, 1);
    model.invalidate(2);
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.bytes().read(view.address, before->size()), *before);
    // The load would overwrite a view that is held.
    EXPECT_EQ(model.use(2), SH_ERROR_HELD);
    model.release(2);
    SUCCEEDS(model.use(2));
    EXPECT_GT(serial_of(model, 2), view.serial);
}

class DirtyContents : public Contents {};  // whose sources can be written

TEST_P(DirtyContents, dirty_blocks_are_written_back) {
    SoloModel model(
        settings(),
        [&] {
            auto specs = unequal_blocks(12, origin());
            for (BlockSpec& spec : specs) spec.flags = SH_BLOCK_MUTABLE;
            return specs;
        }(),
        forward_backward(12));
    uint64_t version = 0;
    for (int k = 0; k < 4; k++) {
        model.begin_step();
        for (const size_t i : forward_backward(12)) {
            sh_view view = model.acquire(i);
            SUCCEEDS(model.compare(i, view, SH_STREAM_HOST));
            if ((i + k) % 2) {
                SUCCEEDS(model.overwrite(i, view, ++version));
            }
            model.release(i);
        }
        model.end_step();
    }
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    for (size_t i = 0; i < 12; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
    const sh_runtime_stats stats = model.stats();
    EXPECT_GT(stats.write_backs, 0u);
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.stats().write_backs, stats.write_backs) << "clean blocks were written";
}

TEST_P(DirtyContents, a_plan_and_a_budget_lose_nothing_dirty) {
    SoloModel model(settings(), equal_blocks(6, 3 * kPage, origin(), SH_BLOCK_MUTABLE), forward(6));
    uint64_t version = 0;
    for (const uint64_t pages : {12, 40, 3, 20}) {
        model.begin_step();
        for (size_t i = 0; i < 6; i++) model.rewrite(i, ++version);
        model.end_step();
        SUCCEEDS(sh_device_set_budget(model.device(), pages * kPage));
    }
    // Unregistering writes back as well.
    SUCCEEDS(sh_unregister_blocks(model.runtime(), model.ids().data(), 6));
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << "block " << i;
}

INSTANTIATE_TEST_SUITE_P(Sources, Contents,
                         testing::Combine(testing::ValuesIn(kOrigins), testing::Values(uint64_t(11), uint64_t(60))),
                         [](const auto& info) {
                             return name_of(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
                         });

INSTANTIATE_TEST_SUITE_P(Sources, DirtyContents,
                         testing::Combine(testing::Values(Origin::pinned, Origin::pageable),
                                          testing::Values(uint64_t(11), uint64_t(60))),
                         [](const auto& info) {
                             return name_of(std::get<0>(info.param)) + std::to_string(std::get<1>(info.param));
                         });

TEST(Dirty, what_a_neighbour_changed_survives_an_invalidation) {
    // Both are small, and share a page.
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        SoloModel model({}, equal_blocks(2, 900, origin, SH_BLOCK_MUTABLE));
        model.rewrite(0, 1);
        model.change(1, 1);
        model.invalidate(1);
        SUCCEEDS(model.use(0));
        SUCCEEDS(model.use(1));
    }
}

// An older write-back that is still under way never overwrites the bytes of a newer write-back.
TEST(Dirty, again_while_it_is_written_back) {
    DeviceSettings slow{.budget_bytes = 6 * kPage};
    slow.options += ";latency=300us";
    SoloModel model(slow, equal_blocks(3, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE), forward(3));
    uint64_t version = 0;
    for (int k = 0; k < 20; k++) {
        for (int n = 0; n < 3; n++) model.rewrite(1, ++version);
        SUCCEEDS(k % 2 ? model.use(2) : sh_write_back(model.runtime(), nullptr, 0));
    }
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
}

// A write-back also includes changes that a stream has yet to make.
TEST(Dirty, what_a_late_stream_changes_is_written_back) {
    for (const Origin origin : {Origin::pinned, Origin::pageable}) {
        SoloModel model({}, equal_blocks(1, 3 * kPage, origin, SH_BLOCK_MUTABLE));
        const sh_stream stream = model.stream();
        for (uint64_t version = 1; version < 4; version++) {
            sh_view view = model.acquire(0, stream);
            SUCCEEDS(sh_stream_launch(model.device(), stream, nullptr, nullptr, 5'000'000));
            SUCCEEDS(model.overwrite(0, view, version, stream));
            model.release(0, stream);
            SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
            EXPECT_EQ(model.source(0).read(), *model.truth(0)) << name_of(origin) << ", version " << version;
        }
    }
}

// A block whose source takes its time. Workers are loading it when begin() returns.
class SlowLoad : public testing::Test {
protected:
    void begin() {
        sh_segment segment = fill_segment(fill, this, 3 * kPage);
        block_ = register_block(model_.runtime(), segment, SH_BLOCK_UNORDERED);
        SUCCEEDS(model_.schedule({0}));
        SUCCEEDS(model_.step({0}));
        SUCCEEDS(sh_prefetch(model_.runtime(), &block_, 1));
        while (!begun_) std::this_thread::yield();
    }
    // Returns the first byte of the block's next view.
    uint8_t first_byte() {
        uint8_t byte = 0;
        auto view = sh_sized<sh_view>();
        EXPECT_SUCCEEDS(sh_acquire(model_.runtime(), block_, SH_STREAM_HOST, 0, &view));
        EXPECT_SUCCEEDS(sh_read_block(model_.runtime(), block_, SH_STREAM_HOST, 0, &byte, 1));
        EXPECT_SUCCEEDS(sh_release(model_.runtime(), block_, SH_STREAM_HOST));
        return byte;
    }

    std::atomic<uint8_t> value_{1};
    TestDevice device_;
    Model model_{device_, equal_blocks(1, kPage)};
    sh_block block_ = 0;

private:
    static int32_t fill(void* buffer, uint64_t, uint64_t bytes, void* self) {
        auto& load = *static_cast<SlowLoad*>(self);
        const uint8_t value = load.value_;
        load.begun_ = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        std::memset(buffer, value, bytes);
        return 0;
    }

    std::atomic<bool> begun_{false};
};

TEST_F(SlowLoad, an_update_waits_until_nothing_reads_the_source) {
    ASSERT_NO_FATAL_FAILURE(begin());
    SUCCEEDS(sh_source_update_begin(model_.runtime(), &block_, 1));
    value_ = 2;
    SUCCEEDS(sh_source_update_end(model_.runtime(), &block_, 1));
    EXPECT_EQ(first_byte(), 2);
}

TEST_F(SlowLoad, an_acquire_gets_bytes_that_are_newer_than_the_load) {
    ASSERT_NO_FATAL_FAILURE(begin());
    value_ = 2;
    SUCCEEDS(sh_invalidate_blocks(model_.runtime(), &block_, 1));
    EXPECT_EQ(first_byte(), 2);
}

TEST(Dirty, misplaced_calls_are_refused) {
    auto specs = equal_blocks(2, 3 * kPage);
    specs[0].flags = SH_BLOCK_MUTABLE;
    SoloModel model({}, specs);
    EXPECT_EQ(sh_mark_dirty(model.runtime(), model.id(0)), SH_ERROR_INVALID_STATE);
    sh_view view = model.acquire(1);
    EXPECT_EQ(sh_mark_dirty(model.runtime(), model.id(1)), SH_ERROR_INVALID_STATE);
    model.release(1);
    view = model.acquire(0);
    SUCCEEDS(sh_mark_dirty(model.runtime(), model.id(0)));
    EXPECT_EQ(sh_write_back(model.runtime(), nullptr, 0), SH_ERROR_INVALID_STATE);
    model.release(0);
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
}

// Holds a stream until the gate is opened.
class Gate {
public:
    Gate(TestDevice& device, sh_stream stream) {
        EXPECT_SUCCEEDS(sh_stream_launch(device.get(), stream, wait, this, -1));
    }
    ~Gate() { open(); }
    void open() { open_ = true; }

private:
    static void wait(void* self) {
        while (!static_cast<Gate*>(self)->open_) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    std::atomic<bool> open_{false};
};

// Leaves a write-back of the block under way. The write-back waits for the gate.
void write_behind(Model& model, size_t i, sh_stream stream) {
    model.acquire(i, stream);
    SUCCEEDS(sh_mark_dirty(model.runtime(), model.id(i)));
    model.release(i, stream);
}

TEST(Dirty, a_second_write_back_waits_for_the_first) {
    SoloModel model({.budget_bytes = 6 * kPage}, equal_blocks(3, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE),
                    forward(3));
    SUCCEEDS(model.use(1));
    const sh_stream stream = model.stream();
    Gate gate(model.test_device(), stream);
    write_behind(model, 1, stream);
    EXPECT_EQ(model.state(1).state, uint32_t(SH_BLOCK_DRAINING));
    const uint64_t before = model.stats().write_backs;
    auto view = sh_sized<sh_view>();
    // The engine's work on another stream comes after the write-back's read. The host would have to wait.
    EXPECT_EQ(sh_acquire(model.runtime(), model.id(1), SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view), SH_NOT_READY);
    const sh_stream later = model.stream();
    model.rewrite(1, 1, later);
    EXPECT_EQ(model.stats().write_backs, before) << "two write-backs of one block at once";
    gate.open();
    SUCCEEDS(sh_write_back(model.runtime(), nullptr, 0));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
    SUCCEEDS(model.step(forward(3)));
}

TEST(Dirty, an_invalidation_waits_for_a_neighbour_that_is_dirty_again) {
    // The first two share a unit, which streams.
    SoloModel model({.budget_bytes = 6 * kPage},
                    blocks_of({900, 900, 6 * kPage, 6 * kPage}, Origin::pageable, SH_BLOCK_MUTABLE), forward(4));
    const sh_stream stream = model.stream();
    Gate gate(model.test_device(), stream);
    write_behind(model, 0, stream);
    const sh_stream later = model.stream();
    model.rewrite(0, 1, later);
    model.change(1, 1);
    model.invalidate(1);
    gate.open();
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(4)));
}

// Both blocks are small and share a unit. The only worker has read the neighbour's bytes and does not get to write
// them. No command reads or writes the bytes of the block that is unregistered.
TEST(Dirty, a_view_is_not_given_of_a_block_that_goes_while_it_waits) {
    DeviceSettings one_worker{.budget_bytes = 7 * kPage};
    one_worker.staging_threads = 1;
    SoloModel model(one_worker, blocks_of({900, 900, 6 * kPage, 6 * kPage}, Origin::pageable, SH_BLOCK_MUTABLE),
                    forward(4));
    struct Fill {
        std::atomic<bool> begun{false}, may_end{false};
        static int32_t run(void* buffer, uint64_t, uint64_t bytes, void* self) {
            Fill& fill = *static_cast<Fill*>(self);
            fill.begun = true;
            for (int k = 0; k < 5000 && !fill.may_end; k++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            std::memset(buffer, 1, bytes);
            return 0;
        }
    } fill;
    sh_segment segment = fill_segment(Fill::run, &fill, 100);
    const sh_block filled = register_block(model.runtime(), segment, SH_BLOCK_UNORDERED);
    for (size_t i = 2; i < 6; i++) SUCCEEDS(model.use(i % 4));
    const sh_stream stream = model.stream(), later = model.stream();
    Gate gate(model.test_device(), stream);
    write_behind(model, 0, stream);
    ASSERT_EQ(model.state(0).state, uint32_t(SH_BLOCK_DRAINING));
    auto view = sh_sized<sh_view>();
    sh_status status = SH_NOT_READY;
    while (status == SH_NOT_READY)
        status = sh_acquire(model.runtime(), model.id(0), later, SH_ACQUIRE_NO_WAIT,
                            &view);  // repeated until the load is queued
    SUCCEEDS(status);
    model.release(0, later);
    EXPECT_EQ(sh_acquire(model.runtime(), filled, SH_STREAM_HOST, SH_ACQUIRE_NO_WAIT, &view), SH_NOT_READY);
    while (!fill.begun) std::this_thread::yield();
    const sh_block going = model.id(1);
    SUCCEEDS(sh_invalidate_blocks(model.runtime(), &going, 1));
    gate.open();
    model.synchronize();
    std::thread user([&] {
        auto of = sh_sized<sh_view>();
        EXPECT_EQ(sh_acquire(model.runtime(), going, SH_STREAM_HOST, 0, &of), SH_ERROR_INVALID_HANDLE);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_SUCCEEDS(sh_unregister_blocks(model.runtime(), &going, 1));
    EXPECT_FALSE(fill.may_end);
    fill.may_end = true;
    user.join();
    SUCCEEDS(model.step({0, 2, 3}));
}

// A plan changes and waits for a write-back. No thread may take a view of contents that the plan is about to move.
TEST(Dirty, no_view_is_taken_while_a_plan_changes) {
    SoloModel model({.budget_bytes = 30 * kPage}, equal_blocks(5, 6 * kPage, Origin::pageable, SH_BLOCK_MUTABLE),
                    forward(5));
    for (size_t i = 0; i < 5; i++) SUCCEEDS(model.use(i));
    const sh_stream stream = model.stream();
    Gate gate(model.test_device(), stream);
    write_behind(model, 1, stream);
    SUCCEEDS(model.schedule({4, 3, 2, 1, 0, 1, 2}));
    std::thread planner([&] { EXPECT_SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::thread user([&] {
        auto view = sh_sized<sh_view>();
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
}

TEST(Failing, a_fill_callback_fails_and_recovers) {
    SoloModel model({.budget_bytes = 8 * kPage}, equal_blocks(4, 4 * kPage, Origin::fill), forward(4));
    model.source(1).fill_result = 5;
    EXPECT_EQ(model.step(forward(4)), SH_ERROR_CALLBACK) << why();
    model.source(1).fill_result = 0;
    sh_status status = SH_OK;
    for (int k = 0; k < 3; k++) status = model.step(forward(4));
    SUCCEEDS(status);
}

TEST(Failing, a_file_that_shrinks_is_an_error) {
    for (const Origin origin : {Origin::file, Origin::mapped}) {
        SoloModel model({.budget_bytes = 8 * kPage}, equal_blocks(4, 4 * kPage, origin), forward(4));
        ASSERT_TRUE(model.source(2).shrink(kPage));
        EXPECT_EQ(model.step(forward(4)), SH_ERROR_SOURCE) << why();
        ASSERT_TRUE(model.source(2).shrink(4 * kPage));
        model.change(2, 3);
        model.invalidate(2);
        sh_status status = SH_OK;
        for (int k = 0; k < 3; k++) status = model.step(forward(4));
        SUCCEEDS(status);
    }
}

}  // namespace
}  // namespace stagehand::test
