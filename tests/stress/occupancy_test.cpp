// Memory of engines that comes and goes: what single failures leave, and several threads, with and without failures,
// against a model that predicts each status and each byte.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "engine.h"
#include "fault/fault.h"
#include "host/host_backend.h"
#include "occupancy_engine.h"
#include "plugin.h"
#include "scale.h"

namespace stagehand::test {
namespace {

sh_device* open_device(const std::string& plan) {
    const std::string options = "wrap=host;capacity=512MiB;granularity=64KiB;poison=1;" + plan;
    sh_device_options wanted = SH_DEVICE_OPTIONS_INIT;
    wanted.backend_options = options.c_str();
    wanted.budget_bytes = 384 << 20;
    sh_device* device = nullptr;
    ignore(sh_device_open("fault", &wanted, &device));
    return device;
}

// A driver that refuses to unpin memory twice in a row keeps that memory for good, so the library never frees it.
enum class Unpinning { works, may_fail };

void expect_nothing_left(sh_device* device, Unpinning unpinning) {
    SUCCEEDS(sh_occupancy_trim(device, nullptr));
    const host::MemoryStatistics left = host::all_memory_statistics().at(0);
    EXPECT_EQ(left.pages, 0u);
    EXPECT_EQ(left.mapped_bytes, 0u);
    if (unpinning == Unpinning::works) {
        EXPECT_EQ(left.pinned_bytes, 0u);
    }
    auto memory = sh_sized<sh_memory_info>();
    SUCCEEDS(sh_device_get_memory(device, &memory));
    EXPECT_EQ(memory.used_bytes, 0u);
}

class Occupancy : public testing::Test {
protected:
    void SetUp() override {
        if (!std::getenv("STAGEHAND_BACKEND_PATH"))
            GTEST_SKIP() << "STAGEHAND_BACKEND_PATH does not lead to the plugin";
    }

    static uint64_t failures() {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        return FAULT(sh_fault_counters)(&counters) == SH_OK ? counters.failures : 0;
    }
};

TEST_F(Occupancy, a_device_that_is_gone_takes_its_contents_along) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    uint64_t kept = 0, lost = 0, more = 0;
    options.tag = "kept";
    SUCCEEDS(sh_alloc(device, 3 << 20, &options, &kept));
    SUCCEEDS(sh_pause(device, nullptr, nullptr));
    options.tag = "lost";
    SUCCEEDS(sh_alloc(device, 3 << 20, &options, &lost));
    const sh_fault_plan plan = {sizeof plan, SH_ERROR_DEVICE_LOST, "device_synchronize", 1, 1};
    SUCCEEDS(FAULT(sh_fault_arm)(&plan));
    EXPECT_EQ(sh_pause(device, nullptr, nullptr), SH_ERROR_DEVICE_LOST);
    auto info = sh_sized<sh_occupancy_info>();
    SUCCEEDS(sh_occupancy_get_info(device, "lost", &info));
    EXPECT_EQ(info.state, SH_OCCUPANCY_LOST + 0u);
    SUCCEEDS(sh_occupancy_get_info(device, "kept", &info));
    EXPECT_EQ(info.state, SH_OCCUPANCY_RELEASED + 0u);
    sh_pause_options again = SH_PAUSE_OPTIONS_INIT;
    again.tags = &options.tag;
    again.tag_count = 1;
    EXPECT_REFUSED(sh_pause(device, &again, nullptr), SH_ERROR_INVALID_STATE, "lost");
    EXPECT_EQ(sh_alloc(device, 1, &options, &more), SH_ERROR_INVALID_STATE);
    SUCCEEDS(sh_free(device, lost));
    SUCCEEDS(sh_free(device, kept));
    expect_nothing_left(device, Unpinning::works);
    sh_device_close(device);
}

// The memory of one tag is copied, and that of the other one is filled. So the calls tell which one comes first.
TEST_F(Occupancy, the_tag_that_is_named_first_comes_back_first) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    uint64_t memory = 0;
    sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
    options.tag = "copied";
    SUCCEEDS(sh_alloc(device, 6 << 20, &options, &memory));
    options.tag = "filled";
    options.contents = SH_CONTENTS_ZERO;
    SUCCEEDS(sh_alloc(device, 6 << 20, &options, &memory));
    const auto calls = [] {
        sh_fault_counters_info counters = {sizeof counters, 0, 0, 0};
        EXPECT_SUCCEEDS(FAULT(sh_fault_counters)(&counters));
        return counters.calls;
    };
    for (const std::vector<const char*>& order : {std::vector{"copied", "filled"}, std::vector{"filled", "copied"}}) {
        SUCCEEDS(sh_pause(device, nullptr, nullptr));
        const uint64_t before = calls();
        sh_resume_options wanted = SH_RESUME_OPTIONS_INIT;
        wanted.tags = order.data();
        wanted.tag_count = order.size();
        SUCCEEDS(sh_resume(device, &wanted, nullptr));
        std::vector<std::string> came;
        for (uint64_t i = before + 1; i <= calls(); i++) {
            const std::string call = FAULT(sh_fault_call_name)(i);
            const char* const tag = call == "copy_to_device" ? "copied" : call == "fill" ? "filled" : nullptr;
            if (tag && (came.empty() || came.back() != tag)) came.push_back(tag);
        }
        EXPECT_EQ(came, std::vector<std::string>(order.begin(), order.end()));
    }
    sh_device_close(device);
}

TEST_F(Occupancy, host_memory_is_pinned_in_the_first_cycle_only) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    {
        Engine engine(device, "weights", 1, false);
        for (const uint64_t bytes : {1000, 3 << 20, 70'000, 5 << 20}) engine.alloc(bytes, SH_CONTENTS_STAGE);
        auto* const count = FAULT(sh_fault_call_count);
        uint64_t pinned = 0, events = 0;
        for (int cycle = 0; cycle < 4; cycle++) {
            engine.pause();
            engine.resume();
            if (cycle) {
                EXPECT_EQ(count("host_register"), pinned);
                EXPECT_EQ(count("event_create") + count("stream_create"), events);
            }
            pinned = count("host_register");
            events = count("event_create") + count("stream_create");
        }
        EXPECT_GT(pinned, 0u);
        engine.finish();
    }
    expect_nothing_left(device, Unpinning::works);
    sh_device_close(device);
}

// A driver that cannot pack, and one that cannot at first.
TEST_F(Occupancy, contents_leave_as_they_are_if_a_trial_of_packing_fails) {
    for (const sh_status failure : {SH_ERROR_UNSUPPORTED, SH_ERROR_BACKEND}) {
        sh_device* const device = open_device("");
        ASSERT_TRUE(device) << why();
        uint64_t memory = 0;
        SUCCEEDS(sh_alloc(device, 4 << 20, nullptr, &memory));
        const std::vector<uint8_t> contents = contents_of(1, 1, 4 << 20);
        std::memcpy(reinterpret_cast<void*>(memory), contents.data(), contents.size());
        const auto cycle = [&](uint32_t format) {
            sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
            options.format = format;
            auto gone = sh_sized<sh_occupancy_change>();
            EXPECT_SUCCEEDS(sh_pause(device, &options, &gone));
            EXPECT_SUCCEEDS(sh_resume(device, nullptr, nullptr));
            EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(memory), contents.data(), contents.size()), 0);
            return std::pair(gone.copied_bytes, gone.packed_bytes);
        };
        const auto none = std::pair<uint64_t, uint64_t>(0, 0), all = std::pair<uint64_t, uint64_t>(4 << 20, 4 << 20);
        EXPECT_EQ(cycle(0).first, 4u << 20);
        const sh_fault_plan plan = {sizeof plan, failure, "pack_tiles", 1, 1};
        SUCCEEDS(FAULT(sh_fault_arm)(&plan));
        EXPECT_EQ(cycle(SH_FORMAT_BF16), none) << "the copy in host memory is lost";
        EXPECT_EQ(failures(), 1u);
        EXPECT_EQ(cycle(SH_FORMAT_BF16), failure == SH_ERROR_UNSUPPORTED ? none : all);
        SUCCEEDS(sh_free(device, memory));
        sh_device_close(device);
    }
}

TEST_F(Occupancy, what_has_not_changed_is_not_copied_again) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    {
        Engine engine(device, "weights", 1, false);
        for (const uint64_t bytes : {8 << 20, 4 << 20}) engine.alloc(bytes, SH_CONTENTS_STAGE);
        engine.alloc(6 << 20, SH_CONTENTS_STAGE, true);
        auto* const count = FAULT(sh_fault_call_count);
        const auto copies_of_cycle = [&] {
            const auto all = [&] { return count("copy_to_host") + count("pack_tiles"); };
            const uint64_t before = all();
            engine.pause();
            const uint64_t copies = all() - before;
            engine.resume();
            return copies;
        };
        EXPECT_GE(copies_of_cycle(), 3u);
        EXPECT_EQ(copies_of_cycle(), 0u);
        engine.touch(1);
        EXPECT_EQ(copies_of_cycle(), 1u);
        engine.pause();
        engine.resume();
        // The hash fails: all is copied but what is constant, and nothing is lost.
        const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, "contents_hash", 1, 1};
        SUCCEEDS(FAULT(sh_fault_arm)(&plan));
        EXPECT_GE(copies_of_cycle(), 2u);
        EXPECT_EQ(failures(), 1u);
        EXPECT_GE(copies_of_cycle(), 2u) << "copies without a hash tell nothing";
        EXPECT_EQ(copies_of_cycle(), 0u);
        engine.finish();
    }
    expect_nothing_left(device, Unpinning::works);
    sh_device_close(device);
}

// The threads that move contents through buffers live on after a failure, so they have to be of use afterwards.
TEST_F(Occupancy, threads_that_the_device_refuses_serve_the_next_call) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    {
        Engine engine(device, "weights", 1, true);
        engine.alloc(48 << 20, SH_CONTENTS_STAGE);
        const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, "thread_begin", 1, 0};
        SUCCEEDS(FAULT(sh_fault_arm)(&plan));
        engine.pause_without({}, SH_OCCUPANCY_UNPINNED);
        EXPECT_FALSE(engine.released());
        EXPECT_GT(failures(), 0u);
        FAULT(sh_fault_disarm)();
        for (int cycle = 0; cycle < 3; cycle++) {
            engine.touch(0);
            engine.pause_without({}, SH_OCCUPANCY_UNPINNED);
            ASSERT_TRUE(engine.released()) << why();
            engine.resume();
        }
        engine.finish();
    }
    expect_nothing_left(device, Unpinning::works);
    sh_device_close(device);
}

// Each thread predicts what happens to its tags, whatever the others do.
void several_threads(uint64_t seed, bool faulty) {
    sh_device* const device = open_device("");
    ASSERT_TRUE(device) << why();
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 3; t++)
        threads.emplace_back([=] {
            std::mt19937_64 random(seed * 10 + t);
            Engine first(device, "first " + std::to_string(t), random(), faulty),
                second(device, "second " + std::to_string(t), random(), faulty);
            for (uint64_t k = 0; k < scaled(400) && !testing::Test::HasFailure(); k++) {
                if (faulty && random() % 4 == 0) {
                    const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, nullptr, 1 + random() % 40,
                                                1 + random() % 4};
                    EXPECT_EQ(FAULT(sh_fault_arm)(&plan), SH_OK);
                }
                (random() % 2 ? first : second).act();
                auto all = sh_sized<sh_occupancy_info>();
                EXPECT_SUCCEEDS(sh_occupancy_get_info(device, nullptr, &all));
            }
        });
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    FAULT(sh_fault_disarm)();
    sh_device_close(device);
    EXPECT_TRUE(host::all_memory_statistics().empty()) << "the device is still open";
}

TEST_F(Occupancy, several_threads_and_a_model_of_each) {
    for (uint64_t seed = 0; seed < scaled(4); seed++) several_threads(seed, false);
}

TEST_F(Occupancy, several_threads_and_failures_at_random) {
    for (uint64_t seed = 0; seed < scaled(4); seed++) several_threads(100 + seed, true);
}

// One thread, for as long as it takes to see the states of several tags together.
TEST_F(Occupancy, a_random_engine_with_failures_comes_back_whole) {
    for (uint64_t seed = 0; seed < scaled(20) && !HasFailure(); seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        sh_device* const device = open_device("");
        ASSERT_TRUE(device) << why();
        {
            std::mt19937_64 random(seed);
            Engine engine(device, "weights", random(), true);
            for (int k = 0; k < 150 && !HasFailure(); k++) {
                const sh_fault_plan plan = {sizeof plan, SH_ERROR_BACKEND, nullptr, 1 + random() % 60,
                                            1 + random() % 4};
                if (k % 3 == 0) {
                    SUCCEEDS(FAULT(sh_fault_arm)(&plan));
                }
                engine.act();
            }
            FAULT(sh_fault_disarm)();
            engine.finish();
        }
        expect_nothing_left(device, Unpinning::may_fail);
        sh_device_close(device);
    }
}

}  // namespace
}  // namespace stagehand::test
