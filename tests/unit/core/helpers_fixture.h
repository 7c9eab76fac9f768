// HelpersTest: host devices with paced links, one of which others help.
#pragma once

#include <string>
#include <vector>

#include "core/helpers/helpers.h"
#include "engine.h"
#include "occupancy_fixture.h"
#include "transfer/carrier/carrier.h"

namespace stagehand::test {

class HelpersTest : public testing::Test {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "it needs several devices";
        least_ = transfer::Carrier::least_bytes();
        transfer::Carrier::set_least_bytes(256 << 10);
    }
    void TearDown() override {
        if (least_) transfer::Carrier::set_least_bytes(least_);
    }

    static constexpr uint64_t kBlock = (3 << 20) - 100;
    // Links of so many GB/s, which plans are told.
    static std::string options(uint64_t speed) {
        return "capacity=512MiB;poison=1;bandwidth=" + std::to_string(speed) + "GB/s;latency=1us";
    }
    static DeviceSettings helped_by(const std::string& helpers, uint64_t speed = 2) {
        return {.name = "host:0",
                .options = options(speed),
                .budget_bytes = 20 * kMiB,
                .page_bytes = 64 << 10,
                .link_bytes_per_second = speed * 1'000'000'000,
                .helpers = helpers};
    }
    static DeviceSettings helper(const std::string& name, uint64_t speed = 2) {
        return {.name = name,
                .options = options(speed),
                .budget_bytes = 256 * kMiB,
                .page_bytes = 64 << 10,
                .link_bytes_per_second = speed * 1'000'000'000,
                .helps = true};
    }
    static std::vector<BlockSpec> blocks() { return equal_blocks(10, kBlock); }

    static void run_steps(Model& model, int steps, sh_stream stream) {
        for (int k = 0; k < steps; k++) SUCCEEDS(model.step(forward(model.size()), stream));
    }

    uint64_t least_ = 0;
};

}  // namespace stagehand::test
