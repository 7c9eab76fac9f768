// Contents that change: sources that get other bytes or fail, and blocks that the engine changes itself.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

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

TEST_F(SlowLoad, an_acquire_gets_bytes_that_are_newer_than_the_load) {
    ASSERT_NO_FATAL_FAILURE(begin());
    value_ = 2;
    SUCCEEDS(sh_invalidate_blocks(model_.runtime(), &block_, 1));
    EXPECT_EQ(first_byte(), 2);
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
