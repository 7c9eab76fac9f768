// What a lost device and calls that keep failing do to a runtime, what is left of a plan or of a runtime that failed,
// and what of a failed helper's loads is loaded again. tests/matrix has a failure at every single call.
#include <cstring>
#include <thread>

#include "base/size_text.h"
#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

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
        : model({.name = "fault", .options = "wrap=" + device_under_test(), .budget_bytes = 9 * kPage},
                {{6 * kPage, origin, SH_BLOCK_MUTABLE}, {6 * kPage, origin}, {64, Origin::pinned, SH_BLOCK_UNORDERED}},
                forward(2)) {
        model.plan();
        model.acquire(2);
        EXPECT_SUCCEEDS(model.overwrite(0, model.acquire(0), 1));
        sh_fault_plan plan = {sizeof plan, failure, "copy_to_host", 1, count};
        EXPECT_SUCCEEDS(FAULT(sh_fault_arm)(&plan));
    }
    ~FailingWriteBack() { FAULT(sh_fault_disarm)(); }

    SoloModel model;
};

// Blocks that need nothing of a call are no reason to answer it with success.
void expect_all_lost(FailingWriteBack& failing) {
    sh_runtime* const runtime = failing.model.runtime();
    const sh_block clean = failing.model.id(1);
    auto view = sh_sized<sh_view>();
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
        {"reserve", sh_reserve(runtime, kPage, SH_PRIORITY_PRIMARY, nullptr)},
        {"register_blocks", sh_register_blocks(runtime, &desc, 1, &added)},
        {"invalidate_blocks", sh_invalidate_blocks(runtime, &clean, 1)},
        {"source_update_begin", sh_source_update_begin(runtime, &clean, 1)},
        {"mark_dirty", sh_mark_dirty(runtime, failing.model.id(0))},
        {"write_back", sh_write_back(runtime, &clean, 1)},
        {"write_back_all", sh_write_back(runtime, nullptr, 0)},
        {"capture_begin", sh_capture_begin(runtime, failing.model.stream())}};
    for (const auto& [name, status] : calls) EXPECT_EQ(status, SH_ERROR_RUNTIME_LOST) << name;
}

TEST_F(Faults, a_call_that_is_told_of_a_lost_device_loses_the_runtime) {
    for (const bool acquires : {false, true}) {
        FailingWriteBack failing(Origin::pageable, SH_ERROR_DEVICE_LOST);
        sh_runtime* const runtime = failing.model.runtime();
        failing.model.release(0);  // begins it
        while (failing.model.state(0).state == SH_BLOCK_DRAINING) std::this_thread::yield();
        auto view = sh_sized<sh_view>();
        EXPECT_EQ(acquires ? sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view)
                           : sh_release(runtime, failing.model.id(2), SH_STREAM_HOST),
                  SH_ERROR_DEVICE_LOST)
            << why();
        EXPECT_EQ(failing.model.stats().lost, 1u);
        expect_all_lost(failing);
    }
}

// The acquired block needs the pages of the block whose bytes cannot be written back.
TEST_F(Faults, an_acquire_is_told_of_a_write_back_that_keeps_failing) {
    for (const Origin origin : {Origin::pageable, Origin::pinned}) {
        for (const sh_status failure : {SH_ERROR_BACKEND, SH_ERROR_DEVICE_LOST}) {
            FailingWriteBack failing(origin, failure, 0);
            sh_runtime* const runtime = failing.model.runtime();
            ignore(sh_release(runtime, failing.model.id(0), SH_STREAM_HOST));
            auto view = sh_sized<sh_view>();
            sh_status told = SH_OK;
            for (int k = 0; k < 3 && told != failure; k++) {  // the first error may come from before the retry
                told = sh_acquire(runtime, failing.model.id(1), SH_STREAM_HOST, 0, &view);
                ASSERT_NE(told, SH_OK) << "the change of the other block is lost";
            }
            EXPECT_TRUE(told == failure || told == SH_ERROR_RUNTIME_LOST) << why();
            FAULT(sh_fault_disarm)();
            EXPECT_EQ(failing.model.stats().lost, failure == SH_ERROR_DEVICE_LOST ? 1u : 0u);
            if (failure == SH_ERROR_DEVICE_LOST) continue;
            SUCCEEDS(sh_write_back(runtime, nullptr, 0));
            view = held_view(runtime, failing.model.id(1));
            let_go(runtime, failing.model.id(1));
            let_go(runtime, failing.model.id(2));
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
    let_go(failing.model.runtime(), failing.model.id(2));
}

// A failed plan leaves the runtime without a plan, but with the memory that it had.
TEST_F(Faults, what_a_plan_that_failed_has_left_is_given_back) {
    SoloModel model({.name = "fault", .budget_bytes = 40 * kPage}, equal_blocks(18, 2 * kPage));
    for (size_t blocks : {18, 17}) {
        SUCCEEDS(model.schedule(forward(blocks)));
        if (blocks == 17) {
            const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, "stream_synchronize", 1, 1};
            SUCCEEDS(FAULT(sh_fault_arm)(&plan));
        }
        const sh_status begun = sh_step_begin(model.runtime(), nullptr);
        EXPECT_EQ(begun, blocks == 17 ? SH_ERROR_BACKEND : SH_OK);
        if (begun == SH_OK) model.end_step();
    }
    EXPECT_GT(model.memory().used_bytes, 0u);
    SUCCEEDS(sh_trim(model.runtime(), 0, nullptr));
    EXPECT_EQ(model.memory().used_bytes, 0u);
    SUCCEEDS(model.step(forward(17)));
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
        SUCCEEDS(FAULT(sh_fault_arm)(&plan));
        gone.destroy();
        EXPECT_NE(why().find("could not give back " + exact_size_text(16 * kPage)), std::string::npos) << why();
        FAULT(sh_fault_disarm)();
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
        EXPECT_EQ(sh_reserve(model.runtime(), (pages - 15) * kPage, SH_PRIORITY_PRIMARY, nullptr), SH_ERROR_BUDGET);
        SUCCEEDS(sh_reserve(model.runtime(), (pages - 16) * kPage, SH_PRIORITY_PRIMARY, nullptr));
        EXPECT_EQ(device.memory().headroom_bytes, 0u);
        SUCCEEDS(model.step(forward(20)));
    }
    EXPECT_LE(device.memory().peak_bytes, 64 * kPage);
}

// Copies that the device cannot be asked about may go on when a pause has failed and their memory is freed. Their host
// memory comes back when they have ended, and stays if the device never says so.
TEST_F(Faults, host_memory_stays_as_long_as_copies_may_use_it) {
    if (!on_host_backend()) GTEST_SKIP() << "the test reads and writes device memory";
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    const auto arm = [](uint64_t n, const char* call = nullptr) {
        const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, call, n, 0};
        SUCCEEDS(FAULT(sh_fault_arm)(&plan));
    };
    const auto pins = [] {
        return FAULT(sh_fault_success_count)("host_register") - FAULT(sh_fault_success_count)("host_unregister");
    };
    enum { succeeds, fails, fails_for_ever };
    uint64_t part = 0;  // the call of a pause that gives the first part of the memory back
    for (const auto asking : {succeeds, fails, fails_for_ever}) {
        TestDevice device({.name = "fault", .options = "wrap=host;poison=1;ordered=2", .budget_bytes = 8 << 20});
        const uint64_t pins_before = pins();
        uint64_t memory = 0;
        SUCCEEDS(sh_alloc(device.get(), 3 << 20, nullptr, &memory));
        sh_fault_counters_info before = {sizeof before, 0, 0, 0};
        SUCCEEDS(FAULT(sh_fault_counters)(&before));
        if (asking != succeeds) arm(part + 1);
        ASSERT_EQ(sh_pause(device.get(), nullptr, nullptr), asking == succeeds ? SH_OK : SH_ERROR_BACKEND);
        for (part = 1; std::strcmp(FAULT(sh_fault_call_name)(before.calls + part), "pages_destroy") != 0;) part++;
        SUCCEEDS(sh_free(device.get(), memory));
        EXPECT_EQ(pins(), asking == succeeds ? pins_before : pins_before + 1);
        FAULT(sh_fault_disarm)();
        if (asking == fails_for_ever) {
            arm(1, "stream_synchronize");
            continue;
        }
        SUCCEEDS(sh_occupancy_trim(device.get(), nullptr));
        EXPECT_EQ(pins(), pins_before);
    }
}

class HelperFaults : public testing::Test {
protected:
    static constexpr uint64_t kMiB = 1 << 20;

    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        if (!on_host_backend()) GTEST_SKIP() << "it needs two devices";
        if (!has_helpers()) GTEST_SKIP() << "the build has no helpers";
    }

    static DeviceSettings of(uint32_t number, uint64_t budget, const std::string& helpers) {
        return {
            .name = "fault:" + std::to_string(number),
            .options = "wrap=host:" + std::to_string(number) + ";capacity=256MiB;poison=1;bandwidth=1GB/s;latency=1us",
            .budget_bytes = budget,
            .page_bytes = 64 << 10,
            .link_bytes_per_second = 4'000'000'000,
            .staging_bytes = 4 * kMiB,
            .helpers = helpers};
    }
};

// What was known to be right before a failure is not told of, and not loaded again.
TEST_F(HelperFaults, only_loads_that_nobody_has_looked_at_since_are_lost) {
    TestDevice device(of(0, 14 * kMiB, "fault:1"));
    TestDevice helper(of(1, 128 * kMiB, ""));  // the plugin's controls are those of the device that was opened last
    Model model(device, equal_blocks(4, 5 * kMiB));
    SUCCEEDS(model.schedule(forward(4)));
    const sh_stream stream = device.stream();
    const sh_fault_plan no_answer = {sizeof no_answer, SH_ERROR_DEVICE_LOST, "event_query", 1, 0};
    const auto arm = [&] { EXPECT_EQ(FAULT(sh_fault_arm)(&no_answer), SH_OK); };
    const auto disarm = FAULT(sh_fault_disarm);
    SUCCEEDS(model.step(forward(4), stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t helped = model.stats().helped_bytes, loads = model.stats().loads;
    EXPECT_GT(helped, 0u);
    arm();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().loads, loads);
    disarm();

    SUCCEEDS(model.step(forward(4), stream));
    EXPECT_GT(model.stats().helped_bytes, helped);
    arm();
    EXPECT_REFUSED(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND, "a device that helps has failed");
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t until_then = model.stats().helped_bytes;
    SUCCEEDS(model.step(forward(4), stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().helped_bytes, until_then) << "the helper is not left out";
}

}  // namespace
}  // namespace stagehand::test
