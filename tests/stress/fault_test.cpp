// A failure at every single call into the backend: the library returns a clean error, shows no wrong byte and loses no
// changes of the engine. The runtime goes on, or says that it is lost.
#include <cstring>
#include <functional>
#include <set>
#include <thread>

#include "base/size_text.h"
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

// The plugin's controls.
template <class Function>
Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

uint64_t failures() {
    sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
    return control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters) == SH_OK ? counters.failures : 0;
}

const char* call_name(uint64_t index) {
    const char* const name = control<decltype(sh_fault_call_name)>("sh_fault_call_name")(index);
    return name ? name : "?";
}

// One run in which some calls fail. A failed operation is tried again. Forbidden results are noted.
class FaultyRun {
public:
    // `lasting` means that the failures go on until they are switched off after the steps. Operations need not succeed
    // before that.
    explicit FaultyRun(const std::string& plan, bool lasting = false) : all_comes_back_(!lasting), lasting_(lasting) {
        settings_.name = "fault";
        settings_.options = "wrap=" + device_under_test() +
                            (on_host_backend() ? ";capacity=64MiB;staging_piece=8KiB;poison=1;" : ";") + plan;
        settings_.budget_bytes = 16 * kPage;
        settings_.staging_bytes = 16 * kPage;
        settings_.link_bytes_per_second = 0;  // measured, so that it may fail too
    }

    void run() {
        std::unique_ptr<TestDevice> device;
        try {
            device = std::make_unique<TestDevice>(settings_);
        } catch (const std::exception&) {  // opened again it would fail at the same call
            EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device that could not be opened is open";
            return;
        }
        {
            std::unique_ptr<Model> model;
            if (!make([&] { model = std::make_unique<Model>(*device, specs()); })) return;
            sh_stream stream = 0;
            if (!make([&] { stream = device->stream(); })) return;
            work(*model, stream);
            if (lasting_) control<decltype(sh_fault_disarm)>("sh_fault_disarm")();
            finish(*device, *model);
        }
        device.reset();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
    }

private:
    static constexpr int kAttempts = 4;

    static std::vector<BlockSpec> specs() {
        std::vector<BlockSpec> specs = unequal_blocks(8, Origin::pinned);
        specs[1].origin = specs[4].origin = Origin::pageable;
        specs[3].origin = Origin::fill;
        specs[7] = {3 * kPage, Origin::pageable, SH_BLOCK_MUTABLE};
        specs.push_back({3 * kPage, Origin::pinned, SH_BLOCK_MUTABLE});
        specs.push_back({2 * kPage, Origin::pinned, SH_BLOCK_UNORDERED});
        specs.push_back({3 * kPage, Origin::pageable, SH_BLOCK_UNORDERED});
        return specs;
    }

    bool make(const std::function<void()>& thing) {
        std::string error;
        for (int k = 0; k < kAttempts; k++) {
            try {
                thing();
                return true;
            } catch (const std::exception& failure) {
                error = failure.what();
            }
        }
        if (!lasting_) ADD_FAILURE() << error;
        return false;
    }

    // Returns true if the call succeeded in the end, and false if the runtime is lost.
    bool attempt(const char* what, const std::function<sh_status()>& call) {
        sh_status status = SH_OK;
        for (int k = 0; k < kAttempts; k++) {
            status = call();
            if (status == SH_OK) return true;
            EXPECT_LT(status, 0) << what;
            EXPECT_NE(status, SH_ERROR_INTERNAL) << what << ": " << why();
            EXPECT_FALSE(why().empty());
            if (status == SH_ERROR_RUNTIME_LOST || status == SH_ERROR_DEVICE_LOST) {
                lost_ = true;
                return false;
            }
        }
        if (!lasting_) ADD_FAILURE() << what << " does not recover: " << status << ", " << why();
        return false;
    }

    bool use(Model& model, size_t i, sh_stream stream, bool change) {
        sh_view view = SH_VIEW_INIT;
        if (!attempt("acquire", [&] { return sh_acquire(model.runtime(), model.id(i), stream, 0, &view); }))
            return false;
        const bool launched = attempt("compare", [&] { return model.compare(i, view, stream); });
        if (launched && change) {
            EXPECT_SUCCEEDS(model.overwrite(i, view, ++version_));
        }
        // A release may return an error, but the view is released all the same.
        const sh_status released = sh_release(model.runtime(), model.id(i), stream);
        if (released == SH_ERROR_RUNTIME_LOST) lost_ = true;
        return launched && !lost_;
    }

    void work(Model& model, sh_stream stream) {
        if (!attempt("schedule", [&] { return model.schedule(forward(9)); })) return;
        for (int k = 0; k < 3; k++) {
            if (!attempt("step_begin", [&] { return sh_step_begin(model.runtime()); })) return;
            for (size_t i = 0; i < 9; i++)
                if (!use(model, i, i >= 7 || k == 1 ? SH_STREAM_HOST : stream, i >= 7)) return;
            for (size_t i = 9; i < 11; i++)
                if (!use(model, i, k == 1 ? stream : SH_STREAM_HOST, false)) return;
            const sh_status ended = sh_step_end(model.runtime());
            EXPECT_LE(ended, 0);
            if (ended == SH_ERROR_RUNTIME_LOST) lost_ = true;
            if (lost_) return;
        }
    }

    void finish(TestDevice& device, Model& model) {
        if (lost_) {
            EXPECT_EQ(sh_step_begin(model.runtime()), SH_ERROR_RUNTIME_LOST);
            EXPECT_EQ(model.use(0), SH_ERROR_RUNTIME_LOST);
            EXPECT_EQ(model.stats().lost, 1u);
        } else {
            lasting_ = false;
            attempt("synchronize", [&] { return sh_runtime_synchronize(model.runtime()); });
            attempt("write_back", [&] { return sh_write_back_all(model.runtime()); });
            for (const size_t i : {size_t(7), size_t(8)})
                EXPECT_EQ(model.source(i).read(), *model.truth(i))
                    << "what the engine changed in block " << i << " is lost";
        }
        device.synchronize();
        EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
        model.destroy();
        sh_memory_info memory = SH_MEMORY_INFO_INIT;
        sh_status status = sh_device_get_memory(device.get(), &memory);
        if (status != SH_OK) status = sh_device_get_memory(device.get(), &memory);
        EXPECT_EQ(status, SH_OK);
        EXPECT_LE(memory.peak_bytes, memory.budget_bytes);
        if (!all_comes_back_) return;  // when giving back fails again and again, it comes back when the device closes
        EXPECT_EQ(memory.used_bytes, 0u);
        for (const host::MemoryStatistics& host : host::all_memory_statistics()) {
            EXPECT_EQ(host.pages, 0u);
            EXPECT_EQ(host.file_bytes, 0u);
        }
    }

    DeviceSettings settings_;
    uint64_t version_ = 0;
    bool lost_ = false;
    const bool all_comes_back_;
    bool lasting_;
};

class Faults : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
    }

    // Repeats runs in which the n-th call fails, for n = first, first + stride, ..., until a run meets no failure. A
    // GPU tests only some of these n.
    void every_call(uint64_t first, uint64_t stride, const std::function<std::string(uint64_t)>& plan,
                    bool lasting = false) {
        if (!on_host_backend()) stride *= 7;
        for (uint64_t n = first;; n += stride) {
            SCOPED_TRACE("call " + std::to_string(n));
            FaultyRun run(plan(n), lasting);
            run.run();
            if (failures() == 0) {
                EXPECT_GT(n, 100u) << "the run is too short to mean anything";
                return;
            }
            if (HasFailure()) {
                ADD_FAILURE() << "the call that failed: " << call_name(n);
                return;
            }
        }
    }
};

TEST_F(Faults, one_failure_at_every_call) {
    const uint64_t stride = scaled_stride(1);
    every_call(1, stride, [stride](uint64_t n) {
        constexpr sh_status kinds[] = {SH_ERROR_BACKEND, SH_ERROR_OUT_OF_DEVICE_MEMORY, SH_ERROR_OUT_OF_HOST_MEMORY,
                                       SH_ERROR_INVALID_HANDLE};
        return "fail_at=" + std::to_string(n) + ";fail_status=" + std::to_string(kinds[n / stride % std::size(kinds)]);
    });
}

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
        {"step_begin", sh_step_begin(runtime)},
        {"set_schedule", sh_set_schedule(runtime, &use, 1)},
        {"plan", sh_plan(runtime, nullptr, nullptr)},
        {"reserve", sh_reserve(runtime, kPage, SH_PRIORITY_PRIMARY)},
        {"register_blocks", sh_register_blocks(runtime, &desc, 1, &added)},
        {"invalidate_blocks", sh_invalidate_blocks(runtime, &clean, 1)},
        {"source_update_begin", sh_source_update_begin(runtime, &clean, 1)},
        {"mark_dirty", sh_mark_dirty(runtime, failing.model.id(0))},
        {"write_back", sh_write_back(runtime, &clean, 1)},
        {"write_back_all", sh_write_back_all(runtime)},
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
            SUCCEEDS(sh_write_back_all(runtime));
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
    SUCCEEDS(sh_write_back_all(failing.model.runtime()));
    const sh_block_state state = failing.model.state(0);
    EXPECT_EQ(failing.model.stats().bytes_to_host, state.resident_bytes + state.streamed_bytes);
    SUCCEEDS(sh_release(failing.model.runtime(), failing.model.id(2), SH_STREAM_HOST));
}

// The device denies once that it knows a stream. The library still waits for the work that is queued on the stream.
TEST_F(Faults, a_stream_is_denied_while_it_is_late) {
    if (!on_host_backend()) GTEST_SKIP() << "only the host backend can be slow";
    every_call(1, scaled_stride(29), [](uint64_t n) {
        return "jitter_us=3000;jitter_seed=" + std::to_string(n) +
               ";fail_status=" + std::to_string(SH_ERROR_INVALID_HANDLE) + ";fail_at=" + std::to_string(n);
    });
}

TEST_F(Faults, several_failures_in_a_row) {
    every_call(
        1, scaled_stride(3), [](uint64_t n) { return "fail_count=3;fail_at=" + std::to_string(n); }, true);
}

TEST_F(Faults, everything_fails_from_some_call_on) {
    every_call(
        1, scaled_stride(1), [](uint64_t n) { return "fail_count=0;fail_at=" + std::to_string(n); }, true);
}

// The failing copies and waits do not depend on the time at which they run.
TEST_F(Faults, one_failure_while_every_call_is_delayed) {
    every_call(1, scaled_stride(17), [](uint64_t n) {
        const std::string seed = std::to_string(n);
        return "delay_us=60;delay_seed=" + seed + (on_host_backend() ? ";jitter_us=200;jitter_seed=" + seed : "") +
               ";fail_at=" + seed;
    });
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
        const sh_status begun = sh_step_begin(model.runtime());
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
