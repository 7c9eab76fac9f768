// A failure at every single call into a helper, or into the device that it helps, once or from then on. No byte is
// wrong. Failures of the helper are no failures of the engine's calls: the helper is left out.
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

template <class Function>
Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

class HelperFaults : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        if (!on_host_backend()) GTEST_SKIP() << "it needs two devices";
    }

    struct Result {
        uint64_t helped = 0, failures = 0;
    };

    static std::unique_ptr<TestDevice> open(uint32_t number, uint64_t budget, const std::string& plan,
                                            const std::string& helpers) {
        return std::make_unique<TestDevice>(
            DeviceSettings{.name = "fault:" + std::to_string(number),
                           .options = "wrap=host:" + std::to_string(number) + ";capacity=256MiB;poison=1;" + plan,
                           .budget_bytes = budget,
                           .page_bytes = 64 << 10,
                           .link_bytes_per_second = 4'000'000'000,
                           .helpers = helpers});
    }

    // Two steps of a model that is streamed with a helper.
    static void run(const std::string& device_plan, const std::string& helper_plan, bool may_fail, Result* out) {
        const bool helper_fails = !helper_plan.empty();
        std::unique_ptr<TestDevice> helper, device;
        try {  // the plugin's controls are those of the device that was opened last
            if (!helper_fails) helper = open(1, 128 * kMiB, "", "");
            device = open(0, 14 * kMiB, device_plan, "fault:1");
            if (helper_fails) helper = open(1, 128 * kMiB, helper_plan, "");
        } catch (const std::exception&) {
            out->failures = 1;
            return;
        }
        std::unique_ptr<Model> model;
        for (int k = 0; k < 4 && !model; k++) {
            try {
                model = std::make_unique<Model>(*device, equal_blocks(4, 5 * kMiB));
            } catch (const std::exception& error) {
                EXPECT_TRUE(may_fail) << error.what();
            }
        }
        ASSERT_TRUE(model);
        const auto attempt = [&](const auto& call) {
            sh_status status = SH_OK;
            for (int k = 0; k < 4; k++) {
                status = call();
                if (status == SH_OK || !may_fail) break;
            }
            EXPECT_EQ(status, SH_OK) << why();
        };
        attempt([&] { return model->schedule(forward(4)); });
        sh_stream stream = 0;
        attempt([&] { return sh_stream_create(device->get(), &stream); });
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < 4; i++) attempt([&] { return model->use(i, i % 2 ? stream : SH_STREAM_HOST); });
        attempt([&] { return sh_stream_synchronize(device->get(), stream); });
        attempt([&] { return sh_runtime_synchronize(model->runtime()); });
        EXPECT_EQ(model->wrong_uses(), 0u) << model->first_wrong();
        out->helped = model->stats().helped_bytes;
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        ASSERT_EQ(control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters), SH_OK);
        out->failures = counters.failures;
        attempt([&] { return sh_trim(model->runtime(), 0, nullptr); });
        attempt([&] { return model->use(0, stream); });
        attempt([&] { return sh_stream_synchronize(device->get(), stream); });
        EXPECT_EQ(model->wrong_uses(), 0u) << model->first_wrong();
        model->destroy();
        if (helper_fails) {
            EXPECT_EQ(device->memory().used_bytes, 0u) << "the device has lost memory because the helper has failed";
        }
        model.reset();
        device.reset();
        helper.reset();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }

    // Runs in which the n-th call fails, until a run meets no failure.
    static void every_call(const std::string& count, bool of_helper) {
        for (uint64_t n = 1;; n += scaled_stride(1)) {
            SCOPED_TRACE("call " + std::to_string(n));
            const std::string plan = "fail_at=" + std::to_string(n) + ";fail_count=" + count;
            Result result;
            run(of_helper ? "" : plan, of_helper ? plan : "", !of_helper, &result);
            if (!HasFailure() && result.failures) continue;
            EXPECT_GT(result.helped, 0u) << "without a failure, the helper has brought nothing";
            EXPECT_GT(n, 50u) << "the run is too short to mean anything";
            return;
        }
    }
};

TEST_F(HelperFaults, one_call_of_the_helper_fails) { every_call("1", true); }
TEST_F(HelperFaults, the_helper_is_gone_from_one_call_on) { every_call("0", true); }
TEST_F(HelperFaults, one_call_of_the_device_fails) { every_call("1", false); }

}  // namespace
}  // namespace stagehand::test
