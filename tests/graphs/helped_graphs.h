// HelpedGraphs: a device of the capture backend that captures steps, and a neighbour that helps it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "captured_step.h"
#include "device_under_test.h"
#include "transfer/bond/bond.h"

namespace stagehand::test {

constexpr uint64_t kMiB = 1 << 20, kLarge = (3 << 20) - 100;
constexpr size_t kBlocks = 10;

class HelpedGraphs : public Graphs {
protected:
    void SetUp() override {
        Graphs::SetUp();
        if (IsSkipped()) return;
        least_ = transfer::Bond::least_bytes();
        transfer::Bond::set_least_bytes(256 << 10);
        neighbour_ = std::make_unique<TestDevice>(of("capture:1", 256 * kMiB));
    }
    void TearDown() override {
        if (!least_) return;
        transfer::Bond::set_least_bytes(least_);
        for (int call = 0; call < SH_TEST_CALLS; call++) DRIVER(sh_test_refuse)(static_cast<sh_test_call>(call), 0, 0);
        DRIVER(sh_test_answer)(true);
    }

    static DeviceSettings of(const std::string& name, uint64_t budget, const std::string& link = "2GB/s") {
        return {.name = name,
                .options = "capacity=512MiB;poison=1;latency=1us;bandwidth=" + link,
                .budget_bytes = budget,
                .page_bytes = 64 << 10,
                .link_bytes_per_second = 2'000'000'000};
    }
    static DeviceSettings helped(uint32_t flags = SH_HELPED_IN_GRAPHS) {
        DeviceSettings settings = of("capture:0", 20 * kMiB);
        settings.helpers = "capture:1";
        settings.device_flags = flags;
        return settings;
    }
    static std::vector<BlockSpec> blocks() { return equal_blocks(kBlocks, kLarge); }
    static void plan(Model& model) {
        SUCCEEDS(model.schedule(forward(model.size())));
        SUCCEEDS(sh_plan(model.runtime(), nullptr, nullptr));
    }

    // The neighbour is slower than it says, so that what it brings comes late.
    void slow_down(uint64_t budget, const std::string& link) {
        neighbour_.reset();
        neighbour_ = std::make_unique<TestDevice>(of("capture:1", budget, link));
    }

    // A device that the neighbour helps, and a model that streams.
    struct Planned {
        explicit Planned(const DeviceSettings& settings = helped())
            : device(settings), model(device, blocks()), stream(device.stream()) {
            plan(model);
        }

        TestDevice device;
        Model model;
        const sh_stream stream;
    };
    // The same with a captured step.
    struct Captured {
        explicit Captured(const DeviceSettings& settings = helped())
            : device(settings), model(device, blocks()), stream(device.stream()), step(device, model) {
            plan(model);
            step.capture(stream, forward(kBlocks));
        }

        TestDevice device;
        Model model;
        const sh_stream stream;
        Step step;
    };

    uint64_t least_ = 0;
    std::unique_ptr<TestDevice> neighbour_;
};

}  // namespace stagehand::test
