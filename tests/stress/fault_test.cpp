// What a lost device and calls that keep failing do to a runtime, and what is left of a plan or of a runtime that
// failed. tests/matrix has a failure at every single call.
#include <thread>

#include "base/size_text.h"
#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

// The plugin's controls.
template <class Function>
Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

class Faults : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
    }
};

// A worker writes a mutable block in pageable memory back, and its copy fails. Another such block is held meanwhile.
struct FailingWriteBack {
    // `count` is the number of calls that fail. 0: all later calls fail.
    FailingWriteBack(Origin origin, sh_status failure, uint64_t count = 1)
        : device({.name = "fault", .options = "wrap=" + device_under_test(), .budget_bytes = 9 * kPage}),
          model(
              device,
              {{6 * kPage, origin, SH_BLOCK_MUTABLE}, {6 * kPage, origin}, {64, Origin::pinned, SH_BLOCK_UNORDERED}}) {
        EXPECT_SUCCEEDS(model.schedule(forward(2)));
        model.plan();
        sh_view view = SH_VIEW_INIT, held = SH_VIEW_INIT;
        EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(2), SH_STREAM_HOST, 0, &held));
        EXPECT_SUCCEEDS(sh_acquire(model.runtime(), model.id(0), SH_STREAM_HOST, 0, &view));
        EXPECT_SUCCEEDS(model.overwrite(0, view, 1));
        sh_fault_plan plan = {sizeof plan, failure, "copy_to_host", 1, count};
        EXPECT_SUCCEEDS(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan));
    }
    ~FailingWriteBack() { control<decltype(sh_fault_disarm)>("sh_fault_disarm")(); }

    TestDevice device;
    Model model;
};

TEST_F(Faults, a_release_that_is_told_of_a_lost_device_loses_the_runtime) {
    FailingWriteBack failing(Origin::pageable, SH_ERROR_DEVICE_LOST);
    sh_runtime* const runtime = failing.model.runtime();
    SUCCEEDS(sh_release(runtime, failing.model.id(0), SH_STREAM_HOST));  // begins it
    while (failing.model.state(0).state == SH_BLOCK_DRAINING) std::this_thread::yield();
    EXPECT_EQ(sh_release(runtime, failing.model.id(2), SH_STREAM_HOST), SH_ERROR_DEVICE_LOST) << why();
    EXPECT_EQ(failing.model.stats().lost, 1u);
    sh_view view = SH_VIEW_INIT;
    EXPECT_EQ(sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view), SH_ERROR_RUNTIME_LOST);
}

// Blocks that need nothing of a call are no reason to answer it with success.
TEST_F(Faults, calls_on_a_lost_runtime_say_so) {
    FailingWriteBack failing(Origin::pageable, SH_ERROR_DEVICE_LOST);
    sh_runtime* const runtime = failing.model.runtime();
    SUCCEEDS(sh_release(runtime, failing.model.id(0), SH_STREAM_HOST));  // begins it
    while (failing.model.state(0).state == SH_BLOCK_DRAINING) std::this_thread::yield();
    EXPECT_EQ(sh_release(runtime, failing.model.id(2), SH_STREAM_HOST), SH_ERROR_DEVICE_LOST) << why();
    const sh_block clean = failing.model.id(1);
    sh_view view = SH_VIEW_INIT;
    sh_block_desc desc = SH_BLOCK_DESC_INIT;
    sh_block added = 0;
    sh_use use = SH_USE_INIT;
    use.block = clean;
    desc.bytes = 64;
    sh_segment segment = SH_SEGMENT_INIT;
    segment.pointer = &desc;
    segment.bytes = 64;
    desc.segments = &segment;
    desc.segment_count = 1;
    const std::pair<const char*, sh_status> calls[] = {
        {"acquire", sh_acquire(runtime, clean, SH_STREAM_HOST, 0, &view)},
        {"prefetch", sh_prefetch(runtime, &clean, 1)},
        {"step_begin", sh_step_begin(runtime, nullptr)},
        {"set_schedule", sh_set_schedule(runtime, &use, 1)},
        {"plan", sh_plan(runtime, nullptr, nullptr)},
        {"reserve", sh_reserve(runtime, kPage, SH_PRIORITY_PRIMARY)},
        {"register_blocks", sh_register_blocks(runtime, &desc, 1, &added)},
        {"invalidate_blocks", sh_invalidate_blocks(runtime, &clean, 1)},
        {"source_update_begin", sh_source_update_begin(runtime, &clean, 1)},
        {"mark_dirty", sh_mark_dirty(runtime, failing.model.id(0))},
        {"write_back", sh_write_back(runtime, &clean, 1)},
        {"write_back_all", sh_write_back(runtime, nullptr, 0)},
        {"capture_begin", sh_capture_begin(runtime, failing.device.stream())}};
    for (const auto& [name, status] : calls) EXPECT_EQ(status, SH_ERROR_RUNTIME_LOST) << name;
}

TEST_F(Faults, an_acquire_that_is_told_of_a_lost_device_loses_the_runtime) {
    FailingWriteBack failing(Origin::pageable, SH_ERROR_DEVICE_LOST);
    sh_runtime* const runtime = failing.model.runtime();
    SUCCEEDS(sh_release(runtime, failing.model.id(0), SH_STREAM_HOST));  // begins it
    while (failing.model.state(0).state == SH_BLOCK_DRAINING) std::this_thread::yield();
    sh_view view = SH_VIEW_INIT;
    EXPECT_EQ(sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view), SH_ERROR_DEVICE_LOST) << why();
    EXPECT_EQ(failing.model.stats().lost, 1u);
}

// The acquired block needs the pages of the block whose bytes cannot be written back.
TEST_F(Faults, an_acquire_is_told_of_a_write_back_that_keeps_failing) {
    for (const Origin origin : {Origin::pageable, Origin::pinned}) {
        for (const sh_status failure : {SH_ERROR_BACKEND, SH_ERROR_DEVICE_LOST}) {
            FailingWriteBack failing(origin, failure, 0);
            sh_runtime* const runtime = failing.model.runtime();
            ignore(sh_release(runtime, failing.model.id(0), SH_STREAM_HOST));
            sh_view view = SH_VIEW_INIT;
            sh_status told = SH_OK;
            for (int k = 0; k < 3 && told != failure; k++) {  // the first error may come from before the retry
                told = sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view);
                ASSERT_NE(told, SH_OK) << "the change of the other block is lost";
            }
            EXPECT_TRUE(told == failure || told == SH_ERROR_RUNTIME_LOST) << why();
            control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
            EXPECT_EQ(failing.model.stats().lost, failure == SH_ERROR_DEVICE_LOST ? 1u : 0u);
            if (failure == SH_ERROR_DEVICE_LOST) continue;
            SUCCEEDS(sh_write_back(runtime, nullptr, 0));
            SUCCEEDS(sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view));
            SUCCEEDS(sh_release(runtime, failing.model.id(1), SH_STREAM_HOST));
            SUCCEEDS(sh_release(runtime, failing.model.id(2), SH_STREAM_HOST));
        }
    }
}

TEST_F(Faults, bytes_that_were_not_written_back_are_not_counted) {
    FailingWriteBack failing(Origin::pinned, SH_ERROR_BACKEND);
    EXPECT_EQ(sh_release(failing.model.runtime(), failing.model.id(0), SH_STREAM_HOST), SH_ERROR_BACKEND);
    EXPECT_EQ(failing.model.stats().bytes_to_host, 0u);
    SUCCEEDS(sh_write_back(failing.model.runtime(), nullptr, 0));
    const sh_block_state state = failing.model.state(0);
    EXPECT_EQ(failing.model.stats().bytes_to_host, state.resident_bytes + state.streamed_bytes);
    SUCCEEDS(sh_release(failing.model.runtime(), failing.model.id(2), SH_STREAM_HOST));
}

// A failed plan leaves the runtime without a plan, but with the memory that it had.
TEST_F(Faults, what_a_plan_that_failed_has_left_is_given_back) {
    TestDevice device({.name = "fault", .budget_bytes = 40 * kPage});
    Model model(device, equal_blocks(18, 2 * kPage));
    for (size_t blocks : {18, 17}) {
        SUCCEEDS(model.schedule(forward(blocks)));
        if (blocks == 17) {
            const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, "stream_synchronize", 1, 1};
            SUCCEEDS(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan));
        }
        const sh_status begun = sh_step_begin(model.runtime(), nullptr);
        EXPECT_EQ(begun, blocks == 17 ? SH_ERROR_BACKEND : SH_OK);
        if (begun == SH_OK) {
            SUCCEEDS(sh_step_end(model.runtime()));
        }
    }
    EXPECT_GT(device.memory().used_bytes, 0u);
    SUCCEEDS(sh_trim(model.runtime(), 0, nullptr));
    EXPECT_EQ(device.memory().used_bytes, 0u);
    SUCCEEDS(model.step(forward(17)));
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

// No runtime gets memory that a destroyed runtime could not give back, and no share counts it.
TEST_F(Faults, memory_that_could_not_be_given_back_is_in_nobodys_share) {
    DeviceSettings settings;
    settings.name = "fault";
    settings.options =
        "wrap=" + device_under_test() + (on_host_backend() ? ";capacity=64MiB;staging_piece=8KiB;poison=1" : "");
    settings.budget_bytes = 64 * kPage;
    TestDevice device(settings);
    {
        Model gone(device, equal_blocks(4, 4 * kPage));
        SUCCEEDS(gone.schedule(forward(4)));
        SUCCEEDS(gone.step(forward(4)));
        const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, "stream_synchronize", 1, 0};
        SUCCEEDS(control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan));
        gone.destroy();
        EXPECT_NE(why().find("could not give back " + exact_size_text(16 * kPage)), std::string::npos) << why();
        control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
    }
    EXPECT_EQ(device.memory().used_bytes, 16 * kPage);
    EXPECT_EQ(device.memory().headroom_bytes, 48 * kPage);
    for (const uint64_t pages : {64u, 40u, 60u}) {
        SCOPED_TRACE(pages);
        SUCCEEDS(sh_device_set_budget(device.get(), pages * kPage));
        Model model(device, equal_blocks(20, 4 * kPage));
        SUCCEEDS(model.schedule(forward(20)));
        for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(20)));
        EXPECT_EQ(model.stats().held_bytes, (pages - 16) * kPage);
        EXPECT_EQ(sh_reserve(model.runtime(), (pages - 15) * kPage, SH_PRIORITY_PRIMARY), SH_ERROR_BUDGET);
        SUCCEEDS(sh_reserve(model.runtime(), (pages - 16) * kPage, SH_PRIORITY_PRIMARY));
        EXPECT_EQ(device.memory().headroom_bytes, 0u);
        SUCCEEDS(model.step(forward(20)));
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
    }
    EXPECT_LE(device.memory().peak_bytes, 64 * kPage);
}

}  // namespace
}  // namespace stagehand::test
