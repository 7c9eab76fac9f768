// VirtualSteps: an engine in virtual time, whose steps compute for a part of the time that their copies take.
#pragma once

#include <cmath>
#include <string>

#include "engine.h"

namespace stagehand::test {

class VirtualSteps {
public:
    static constexpr uint64_t kBlocks = 24, kBlock = 1 << 20;
    static constexpr uint64_t kLink = 250'000'000;  // bytes per second
    static constexpr int64_t kCopyNs = 4'194'304;   // of a block

    struct Setting {
        double part;                             // of the blocks, for which there is memory
        bool link_is_given = true;               // to the device, so that it is never measured
        std::string link = "bandwidth=250MB/s";  // as the simulation has it
    };

    explicit VirtualSteps(const Setting& setting) : setting_(setting), device_(virtual_time(setting)) {}

    // Makes steps. Returns the mean time of the last five, in nanoseconds.
    double run(int count, double compute_per_copy) {
        const int64_t busy = busy_ns(compute_per_copy);
        uint64_t began = 0, ended = 0;
        for (int i = 0; i < count; i++) {
            if (i == count - 5) began = now();
            step([&](size_t) { return busy; });
        }
        ended = now();
        return static_cast<double>(ended - began) / 5;
    }
    int64_t busy_ns(double compute_per_copy) const {
        return std::llround(compute_per_copy * (1 - setting_.part) * static_cast<double>(kCopyNs));
    }
    template <class Busy>
    void step(Busy&& busy_ns) {
        EXPECT_SUCCEEDS(sh_step_begin(model_.runtime(), nullptr));
        for (size_t i = 0; i < kBlocks; i++) {
            auto view = sh_sized<sh_view>();
            EXPECT_SUCCEEDS(sh_acquire(model_.runtime(), model_.id(i), stream_, 0, &view));
            EXPECT_SUCCEEDS(sh_stream_launch(device_.get(), stream_, nullptr, nullptr, busy_ns(i)));
            EXPECT_SUCCEEDS(sh_release(model_.runtime(), model_.id(i), stream_));
        }
        EXPECT_SUCCEEDS(sh_step_end(model_.runtime()));
        EXPECT_SUCCEEDS(sh_stream_synchronize(device_.get(), stream_));
    }
    uint64_t plans() { return model_.stats().plans; }
    Model& model() { return model_; }
    uint64_t now() {
        uint64_t now = 0;
        EXPECT_SUCCEEDS(sh_device_get_clock(device_.get(), &now));
        return now;
    }

private:
    static DeviceSettings virtual_time(const Setting& setting) {
        DeviceSettings settings;
        settings.name = "sim";
        settings.options = setting.link + ";granularity=64KiB";
        settings.page_bytes = 64 << 10;
        settings.link_bytes_per_second = setting.link_is_given ? kLink : 0;
        settings.budget_bytes = static_cast<uint64_t>(setting.part * kBlocks * kBlock) >> 16 << 16;
        return settings;
    }

    const Setting setting_;
    TestDevice device_;
    Model model_{device_, equal_blocks(kBlocks, kBlock)};
    const sh_stream stream_ = device_.stream();
};

}  // namespace stagehand::test
