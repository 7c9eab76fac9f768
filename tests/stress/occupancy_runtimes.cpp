// Runtimes that leave the device and come back while calls into the backend fail: every byte of their blocks is right
// whenever they run, and nothing is left at the end.
#include <cstdlib>

#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

template <class Function>
Function* fault_control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

class RuntimesInPauses : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the plugin";
    }

    static DeviceSettings settings() {
        DeviceSettings settings;
        settings.name = "fault";
        settings.options = "wrap=host;capacity=64MiB;poison=1";
        settings.budget_bytes = 24 * kPage;
        return settings;
    }
    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        return fault_control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters) == SH_OK ? counters.failures
                                                                                                   : 0;
    }
    static void arm(uint64_t at, uint64_t count) {
        const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, nullptr, at, count};
        EXPECT_EQ(fault_control<decltype(sh_fault_arm)>("sh_fault_arm")(&plan), SH_OK);
    }
    static void disarm() { fault_control<decltype(sh_fault_disarm)>("sh_fault_disarm")(); }

    static uint32_t state(TestDevice& device) {
        sh_occupancy_info info = SH_OCCUPANCY_INFO_INIT;
        EXPECT_SUCCEEDS(sh_occupancy_get_info(device.get(), "runtime:model", &info));
        return info.state;
    }
    static bool lost(TestDevice& device) { return state(device) == SH_OCCUPANCY_LOST; }
    static void expect_injected(const char* call, sh_status status) {
        EXPECT_TRUE(status == SH_OK || status == SH_ERROR_BACKEND || status == SH_ERROR_RUNTIME_LOST)
            << call << ": " << why();
    }
    // A step whose blocks change, as far as it gets.
    static void step(Model& model, uint64_t version) {
        if (const sh_status begun = sh_step_begin(model.runtime()); begun != SH_OK)
            return expect_injected("sh_step_begin", begun);
        for (size_t i = 0; i < model.size(); i++) {
            sh_view view = SH_VIEW_INIT;
            const sh_status acquired = sh_acquire(model.runtime(), model.id(i), SH_STREAM_HOST, 0, &view);
            if (acquired != SH_OK) {
                expect_injected("sh_acquire", acquired);
                continue;
            }
            expect_injected("a comparison", model.compare(i, view, SH_STREAM_HOST));
            if (i % 3 == version % 3 && model.overwrite(i, view, version) != SH_OK) ADD_FAILURE() << why();
            expect_injected("sh_release", sh_release(model.runtime(), model.id(i), SH_STREAM_HOST));
        }
        expect_injected("sh_step_end", sh_step_end(model.runtime()));
    }
    static void cycle(TestDevice& device, Model& model, uint64_t version) {
        step(model, version);
        for (int k = 0; k < 4 && !lost(device) && state(device) != SH_OCCUPANCY_RELEASED; k++) {
            const sh_status paused = sh_pause(device.get(), nullptr, nullptr);
            expect_injected("sh_pause", paused);
            if (paused == SH_OK) {
                EXPECT_EQ(state(device), SH_OCCUPANCY_RELEASED + 0u);
            }
        }
        if (state(device) == SH_OCCUPANCY_RELEASED) {
            EXPECT_EQ(sh_step_begin(model.runtime()), SH_ERROR_INVALID_STATE) << why();
        }
        for (int k = 0; k < 4 && !lost(device) && state(device) != SH_OCCUPANCY_RUNNING; k++) {
            const sh_status resumed = sh_resume(device.get(), nullptr, nullptr);
            expect_injected("sh_resume", resumed);
            if (resumed == SH_OK) {
                EXPECT_EQ(state(device), SH_OCCUPANCY_RUNNING + 0u);
            }
        }
    }

    // A failure at each call in turn, until the run is over before the failure comes.
    static void every_call(uint64_t stride, uint64_t in_a_row) {
        for (uint64_t n = 1; !testing::Test::HasFailure(); n += stride) {
            SCOPED_TRACE("call " + std::to_string(n));
            {
                TestDevice device(settings());
                sh_runtime_options options = SH_RUNTIME_OPTIONS_INIT;
                options.name = "model";
                Model model(device, equal_blocks(9, 4 * kPage, Origin::pinned, SH_BLOCK_MUTABLE), options);
                SUCCEEDS(model.schedule(forward(9)));
                SUCCEEDS(model.step(forward(9)));
                arm(n, in_a_row);
                for (uint64_t version = 2; version < 4; version++) cycle(device, model, version);
                disarm();
                if (!lost(device)) {
                    if (state(device) == SH_OCCUPANCY_RELEASED) {
                        SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
                    }
                    ignore(sh_write_back_all(model.runtime()));  // tells of failures that nobody waited for
                    SUCCEEDS(model.step(forward(9)));
                    SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
                    EXPECT_EQ(device.memory().used_bytes, 0u);
                    for (size_t i = 0; i < model.size(); i++) EXPECT_EQ(model.source(i).read(), *model.truth(i)) << i;
                }
                EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
                model.destroy();
                if (failures() == 0) {
                    EXPECT_GT(n, 50u) << "the run is too short to mean anything";
                    return;
                }
            }
            EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
        }
    }
};

TEST_F(RuntimesInPauses, one_failure_at_every_call) { every_call(scaled_stride(2), 1); }
TEST_F(RuntimesInPauses, two_failures_in_a_row_at_every_call) { every_call(scaled_stride(3), 2); }
TEST_F(RuntimesInPauses, five_failures_in_a_row_at_every_call) { every_call(scaled_stride(5), 5); }

}  // namespace
}  // namespace stagehand::test
