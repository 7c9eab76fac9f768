// A failure at every single call into a helper, or into the device that it helps, once or from then on. No byte is
// wrong. Failures of the helper are no failures of the engine's calls: the helper is left out.
#include <cstring>

#include "core/movement/helpers.h"
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"
#include "transfer/bond/bond.h"

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

    // A device and its helper, of which one fails as planned.
    struct Pair {
        std::unique_ptr<TestDevice> helper, device;

        // Returns false if one cannot be opened.
        bool open_both(uint64_t budget, const std::string& device_plan, const std::string& helper_plan) {
            try {  // the plugin's controls are those of the device that was opened last
                if (helper_plan.empty()) helper = open(1, 128 * kMiB, "", "");
                device = open(0, budget, device_plan, "fault:1");
                if (!helper_plan.empty()) helper = open(1, 128 * kMiB, helper_plan, "");
                return true;
            } catch (const std::exception&) {
                return false;
            }
        }
    };
    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        EXPECT_EQ(control<decltype(sh_fault_counters)>("sh_fault_counters")(&counters), SH_OK);
        return counters.failures;
    }

    // A call that may fail is made a few times.
    template <class Call>
    static void expect_success(Call&& call, bool may_fail) {
        sh_status status = SH_OK;
        for (int k = 0; k < 4; k++) {
            status = call();
            if (status == SH_OK || !may_fail) break;
        }
        EXPECT_EQ(status, SH_OK) << why();
    }

    // Two steps of a model that is streamed with a helper.
    static void run(const std::string& device_plan, const std::string& helper_plan, bool may_fail, Result* out) {
        const bool helper_fails = !helper_plan.empty();
        Pair pair;
        if (!pair.open_both(14 * kMiB, device_plan, helper_plan)) {
            out->failures = 1;
            return;
        }
        std::unique_ptr<TestDevice>&device = pair.device, &helper = pair.helper;
        std::unique_ptr<Model> model;
        for (int k = 0; k < 4 && !model; k++) {
            try {
                model = std::make_unique<Model>(*device, equal_blocks(4, 5 * kMiB));
            } catch (const std::exception& error) {
                EXPECT_TRUE(may_fail) << error.what();
            }
        }
        ASSERT_TRUE(model);
        const auto attempt = [&](const auto& call) { expect_success(call, may_fail); };
        attempt([&] { return model->schedule(forward(4)); });
        sh_stream stream = 0;
        attempt([&] { return sh_stream_create(device->get(), &stream); });
        for (int k = 0; k < 2; k++)
            for (size_t i = 0; i < 4; i++) attempt([&] { return model->use(i, i % 2 ? stream : SH_STREAM_HOST); });
        attempt([&] { return sh_stream_synchronize(device->get(), stream); });
        attempt([&] { return sh_runtime_synchronize(model->runtime()); });
        EXPECT_EQ(model->wrong_uses(), 0u) << model->first_wrong();
        out->helped = model->stats().helped_bytes;
        out->failures = failures();
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

    // Two pauses whose contents a helper carries a part of.
    static void pause_twice(const std::string& device_plan, const std::string& helper_plan, bool may_fail,
                            Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, device_plan, helper_plan)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        const auto attempt = [&](const auto& call) { expect_success(call, may_fail); };
        constexpr uint64_t kBytes = 5 * kMiB;
        uint64_t memory = 0;
        attempt([&] { return sh_alloc(device, kBytes, nullptr, &memory); });
        ASSERT_NE(memory, 0u);
        for (uint64_t cycle = 0; cycle < 2; cycle++) {
            const std::vector<uint8_t> contents = contents_of(cycle, 1, kBytes);
            std::memcpy(reinterpret_cast<void*>(memory), contents.data(), kBytes);
            sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
            attempt([&] { return sh_pause(device, nullptr, &change); });
            out->helped += change.helped_bytes;
            attempt([&] { return sh_resume(device, nullptr, &change); });
            out->helped += change.helped_bytes;
            EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(memory), contents.data(), kBytes), 0) << "cycle " << cycle;
        }
        out->failures = failures();
        attempt([&] { return sh_free(device, memory); });
        attempt([&] { return sh_occupancy_trim(device, nullptr); });
        if (!helper_plan.empty()) {
            EXPECT_EQ(pair.device->memory().used_bytes, 0u);
        }
        pair = Pair();
        EXPECT_TRUE(host::all_memory_statistics().empty()) << "a device is still open";
    }

    // Runs in which the n-th call fails, until a run meets no failure.
    template <class Run>
    static void every_call(Run&& run, const std::string& count, bool of_helper) {
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

TEST_F(HelperFaults, one_call_of_the_helper_fails) { every_call(run, "1", true); }
TEST_F(HelperFaults, the_helper_is_gone_from_one_call_on) { every_call(run, "0", true); }
TEST_F(HelperFaults, one_call_of_the_device_fails) { every_call(run, "1", false); }

class HelpedPauseFaults : public HelperFaults {
protected:
    // A helper whose driver refuses everything, without a word that the device is lost, may still write host memory. So
    // a pause that it has begun fails, and so do all after it. The contents stay, and the engine goes on: what was away
    // before comes back, and memory can be freed.
    static void pause_with_a_helper_of_which_nothing_is_known(const std::string&, const std::string& helper_plan, bool,
                                                              Result* out) {
        Pair pair;
        if (!pair.open_both(64 * kMiB, "", helper_plan)) {
            out->failures = 1;
            return;
        }
        sh_device* const device = pair.device->get();
        constexpr uint64_t kBytes = 5 * kMiB;
        const std::vector<uint8_t> contents = contents_of(1, 1, kBytes);
        uint64_t memory = 0, away = 0;
        sh_alloc_options early = SH_ALLOC_OPTIONS_INIT;
        early.tag = "early";
        SUCCEEDS(sh_alloc(device, kMiB, &early, &away));
        std::memcpy(reinterpret_cast<void*>(away), contents.data(), kMiB);
        SUCCEEDS(sh_pause(device, nullptr, nullptr));
        SUCCEEDS(sh_alloc(device, kBytes, nullptr, &memory));
        std::memcpy(reinterpret_cast<void*>(memory), contents.data(), kBytes);
        sh_pause_options late = SH_PAUSE_OPTIONS_INIT;
        const char* const tag = "default";
        late.tags = &tag;
        late.tag_count = 1;
        sh_resume_options late_again = SH_RESUME_OPTIONS_INIT;
        late_again.tags = &tag;
        late_again.tag_count = 1;
        for (int cycle = 0; cycle < 3; cycle++) {
            sh_occupancy_change change = SH_OCCUPANCY_CHANGE_INIT;
            if (sh_pause(device, &late, &change) == SH_OK) {
                out->helped += change.helped_bytes;
                SUCCEEDS(sh_resume(device, &late_again, nullptr));
            }
            ASSERT_EQ(std::memcmp(reinterpret_cast<void*>(memory), contents.data(), kBytes), 0) << "cycle " << cycle;
        }
        out->failures = failures();
        SUCCEEDS(sh_resume(device, nullptr, nullptr));
        ASSERT_EQ(std::memcmp(reinterpret_cast<void*>(away), contents.data(), kMiB), 0);
        SUCCEEDS(sh_free(device, memory));
        SUCCEEDS(sh_free(device, away));
        EXPECT_EQ(pair.device->memory().used_bytes, 0u);
    }

    void SetUp() override {
        HelperFaults::SetUp();
        if (IsSkipped()) return;
        if (devices_without_pages()) GTEST_SKIP() << "memory cannot be paused";
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(32 << 10);
        core::Helpers::set_quiet_ns(0);
    }
    void TearDown() override {
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        core::Helpers::set_quiet_ns(100'000'000);
    }

private:
    uint64_t least_ = 0;
};

TEST_F(HelpedPauseFaults, one_call_of_the_helper_fails) { every_call(pause_twice, "1", true); }
TEST_F(HelpedPauseFaults, the_helper_is_lost_from_one_call_on) {
    every_call(pause_twice, "0;fail_status=" + std::to_string(SH_ERROR_DEVICE_LOST), true);
}
TEST_F(HelpedPauseFaults, nothing_is_known_of_the_helper_from_one_call_on) {
    every_call(pause_with_a_helper_of_which_nothing_is_known, "0", true);
}
TEST_F(HelpedPauseFaults, one_call_of_the_device_fails) { every_call(pause_twice, "1", false); }

}  // namespace
}  // namespace stagehand::test
