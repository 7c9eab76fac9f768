// A helper that fails: what is loaded again. The fault matrix has the failures at every single call.
#include <cstdlib>
#include <memory>
#include <string>

#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

template <class Function>
Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
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
    const auto arm = [&] { EXPECT_EQ(control<decltype(sh_fault_arm)>("sh_fault_arm")(&no_answer), SH_OK); };
    const auto disarm = control<decltype(sh_fault_disarm)>("sh_fault_disarm");
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
    EXPECT_EQ(sh_runtime_synchronize(model.runtime()), SH_ERROR_BACKEND);
    EXPECT_NE(why().find("a device that helps has failed"), std::string::npos) << why();
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    const uint64_t until_then = model.stats().helped_bytes;
    SUCCEEDS(model.step(forward(4), stream));
    SUCCEEDS(sh_runtime_synchronize(model.runtime()));
    EXPECT_EQ(model.stats().helped_bytes, until_then) << "the helper is not left out";
    EXPECT_EQ(model.wrong_uses(), 0u) << model.first_wrong();
}

}  // namespace
}  // namespace stagehand::test
