// FailingHelpers: a device and its helper, one of which fails at a call, once or from then on.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>

#include "core/device/helpers.h"
#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "plugin.h"
#include "scale.h"
#include "transfer/bond/bond.h"

namespace stagehand::test {

template <class Function>
inline Function* control(const char* name) {
    return plugin_function<Function>("stagehand-fault.so", name);
}

class FailingHelpers : public testing::Test {
protected:
    static constexpr uint64_t kMiB = 1 << 20;

    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the fault backend";
        if (!on_host_backend()) GTEST_SKIP() << "it needs two devices";
    }

    struct Result {
        uint64_t helped = 0, failures = 0, lost = 0;
    };

    static std::unique_ptr<TestDevice> open(uint32_t number, uint64_t budget, const std::string& plan,
                                            const std::string& helpers) {
        return std::make_unique<TestDevice>(
            DeviceSettings{.name = "fault:" + std::to_string(number),
                           .options = "wrap=host:" + std::to_string(number) + ";capacity=256MiB;poison=1;" + plan,
                           .budget_bytes = budget,
                           .page_bytes = 64 << 10,
                           .link_bytes_per_second = 4'000'000'000,
                           .staging_bytes = 4 * kMiB,
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

    static bool tells_of_a_helper() {
        return std::string(why()).find("a device that helps has failed") != std::string::npos ||
               std::string(why()).find("which helps") != std::string::npos;
    }

    // Runs in which the helper has gone from its n-th copy on, until a run meets no failure.
    template <class Run>
    static void every_copy(Run&& run, const std::string& copy) {
        for (uint64_t n = 1;; n += scaled_stride(1)) {
            SCOPED_TRACE("copy " + std::to_string(n));
            Result result;
            run("",
                "fail_call=" + copy + ";fail_at=" + std::to_string(n) +
                    ";late=1;fail_status=" + std::to_string(SH_ERROR_DEVICE_LOST),
                false, &result);
            ASSERT_LT(n, 10'000u) << "no run is without a failure: the devices cannot be opened";
            if (!HasFailure() && result.failures) continue;
            EXPECT_GT(result.helped, 0u) << "without a failure, the helper has brought nothing";
            EXPECT_GT(n, 2u) << "the run is too short to mean anything";
            return;
        }
    }

    // Runs in which the n-th call fails, until a run meets no failure. `stride`: from one n to the next.
    template <class Run>
    static void every_call(Run&& run, const std::string& count, bool of_helper, uint64_t stride = 1) {
        for (uint64_t n = 1;; n += scaled_stride(stride)) {
            SCOPED_TRACE("call " + std::to_string(n));
            const std::string plan = "fail_at=" + std::to_string(n) + ";fail_count=" + count;
            Result result;
            run(of_helper ? "" : plan, of_helper ? plan : "", !of_helper, &result);
            ASSERT_LT(n, 10'000u) << "no run is without a failure: the devices cannot be opened";
            if (!HasFailure() && result.failures) continue;
            EXPECT_GT(result.helped, 0u) << "without a failure, the helper has brought nothing";
            EXPECT_GT(n, 50u) << "the run is too short to mean anything";
            return;
        }
    }
};

}  // namespace stagehand::test
