// Runtimes in a pause: their device memory goes back, and comes again from their sources.
#include <atomic>
#include <thread>

#include "occupancy_fixture.h"
#include "several_models.h"

namespace stagehand::test {
namespace {

class OccupancyRuntime : public testing::Test {
protected:
    void SetUp() override {
        if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    }
    static sh_status pause(TestDevice& device, std::vector<const char*> tags = {}, uint32_t flags = 0,
                           sh_occupancy_change* change = nullptr) {
        sh_pause_options options = SH_PAUSE_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.flags = flags;
        return sh_pause(device.get(), &options, change);
    }
    static sh_status resume(TestDevice& device, std::vector<const char*> tags = {}, uint32_t flags = 0,
                            sh_occupancy_change* change = nullptr) {
        sh_resume_options options = SH_RESUME_OPTIONS_INIT;
        options.tags = tags.data();
        options.tag_count = tags.size();
        options.flags = flags;
        return sh_resume(device.get(), &options, change);
    }
    static sh_occupancy_info info(TestDevice& device, const char* tag) {
        auto info = sh_sized<sh_occupancy_info>();
        EXPECT_SUCCEEDS(sh_occupancy_get_info(device.get(), tag, &info));
        return info;
    }
};

TEST_F(OccupancyRuntime, APauseOfEverythingReleasesRuntimesToo) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 20, "a"), b = make(device, 12, "b");  // each could use all memory
    copied(*a, 2);
    copied(*b, 2);
    const uint64_t address = reinterpret_cast<uint64_t>(a->state(3).address), held = device.memory().used_bytes;
    EXPECT_EQ(info(device, "runtime:a").bytes, 20 * kBlock);
    EXPECT_EQ(info(device, "runtime:a").allocations, 20u);
    EXPECT_EQ(info(device, "runtime:a").device_bytes, a->stats().held_bytes);
    auto change = sh_sized<sh_occupancy_change>();
    SUCCEEDS(pause(device, {}, 0, &change));
    EXPECT_EQ(change.tag_count, 2u);
    EXPECT_EQ(change.device_bytes, held);
    EXPECT_EQ(change.copied_bytes, 0u) << "blocks have their sources";
    EXPECT_EQ(device.memory().used_bytes, 0u);
    EXPECT_EQ(info(device, nullptr).state, SH_OCCUPANCY_RELEASED + 0u);
    EXPECT_EQ(info(device, "runtime:b").device_bytes, 0u);
    EXPECT_EQ(pause(device, {"runtime:a"}), SH_ERROR_INVALID_STATE);
    SUCCEEDS(pause(device, {"runtime:a"}, SH_OCCUPANCY_REPEAT));
    SUCCEEDS(resume(device, {}, 0, &change));
    EXPECT_EQ(change.tag_count, 2u);
    EXPECT_GT(change.device_bytes, 0u);
    EXPECT_EQ(info(device, "runtime:a").cycles, 1u);
    EXPECT_EQ(info(device, nullptr).state, SH_OCCUPANCY_RUNNING + 0u);
    EXPECT_EQ(resume(device, {"runtime:a"}), SH_ERROR_INVALID_STATE);
    copied(*a, 2);
    copied(*b, 2);
    EXPECT_EQ(reinterpret_cast<uint64_t>(a->state(3).address), address);
    EXPECT_LE(device.memory().peak_bytes, 60 * kPage);
}

TEST_F(OccupancyRuntime, ARuntimeHasATagOfItsOwn) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 8, "a"), b = make(device, 8, "b");
    copied(*a, 2);
    copied(*b, 2);
    SUCCEEDS(pause(device, {"runtime:a"}));
    EXPECT_EQ(a->stats().held_bytes, 0u);
    EXPECT_EQ(info(device, nullptr).state, SH_OCCUPANCY_MIXED + 0u);
    copied(*b, 2);
    uint64_t count = 0;
    sh_occupancy_info all[2] = {sh_sized<sh_occupancy_info>(), sh_sized<sh_occupancy_info>()};
    SUCCEEDS(sh_occupancy_list(device.get(), all, 2, &count));
    EXPECT_EQ(count, 2u);
    EXPECT_STREQ(all[0].tag, "runtime:a");
    EXPECT_EQ(all[0].state, SH_OCCUPANCY_RELEASED + 0u);
    EXPECT_STREQ(all[1].tag, "runtime:b");
    SUCCEEDS(resume(device));
    copied(*a);
}

TEST_F(OccupancyRuntime, RuntimesOfOneNameHaveOneTag) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 4, "same");
    copied(*a, 2);
    SUCCEEDS(pause(device));
    auto b = make(device, 4, "same");
    copied(*b, 2);
    EXPECT_EQ(info(device, "runtime:same").state, SH_OCCUPANCY_MIXED + 0u);
    SUCCEEDS(pause(device, {"runtime:same"}));
    EXPECT_EQ(info(device, "runtime:same").state, SH_OCCUPANCY_RELEASED + 0u);
    SUCCEEDS(resume(device, {"runtime:same"}));
    copied(*a);
    copied(*b);
    const std::string name(70, 'n');
    auto c = make(device, 1, name.c_str());
    EXPECT_EQ(info(device, ("runtime:" + name).substr(0, 63).c_str()).bytes, kBlock);
}

TEST_F(OccupancyRuntime, AReleasedRuntimeTakesWhatNeedsNoMemory) {
    TestDevice device;
    auto a = make(device, 6, "a");
    copied(*a, 2);
    SUCCEEDS(pause(device));
    const sh_block first = a->id(0);
    uint64_t held = 7;
    SUCCEEDS(sh_trim(a->runtime(), 0, &held));
    EXPECT_EQ(held, 0u);
    // What needs no device memory goes on.
    SUCCEEDS(a->add({kBlock, Origin::pinned}));
    SUCCEEDS(a->remove(1));
    SUCCEEDS(a->schedule({0, 2, 3, 6}));
    a->change(2, 9);
    SUCCEEDS(sh_protect_blocks(a->runtime(), &first, 1, nullptr));
    EXPECT_EQ(device.memory().used_bytes, 0u);
    SUCCEEDS(resume(device));
    SUCCEEDS(a->step({0, 2, 3, 6}));
    EXPECT_GE(a->stats().protected_bytes, kBlock) << "the protection holds again";
    SUCCEEDS(pause(device));
    a->destroy();
    EXPECT_EQ(resume(device, {"runtime:a"}), SH_ERROR_NOT_FOUND);
    SUCCEEDS(resume(device));
}

TEST_F(OccupancyRuntime, AnEngineThatUsesTheMemoryRefusesThePause) {
    TestDevice device;
    auto a = make(device, 6, "a"), b = make(device, 6, "b");
    copied(*a, 2);
    copied(*b, 2);
    b->begin_step();
    const auto refused = [&](const char* use) {
        EXPECT_EQ(pause(device), SH_ERROR_INVALID_STATE) << "it does not end without this thread";
        EXPECT_NE(why().find("runtime \"b\""), std::string::npos) << why();
        EXPECT_NE(why().find(use), std::string::npos) << why();
        std::thread other([&] {
            EXPECT_EQ(pause(device), SH_ERROR_BUSY) << "it ends without the other one";
            EXPECT_NE(why().find(use), std::string::npos) << why();
        });
        other.join();
    };
    refused("step");
    SUCCEEDS(b->use(0));
    b->end_step();
    b->acquire(0);
    refused("views");
    EXPECT_EQ(info(device, nullptr).state, SH_OCCUPANCY_RUNNING + 0u);
    copied(*a);  // it was released before the other refused
    b->release(0);
    SUCCEEDS(pause(device));
    SUCCEEDS(resume(device));
    copied(*b);
}

TEST_F(OccupancyRuntime, WhatIsDirtyGoesToItsSourceFirst) {
    SoloModel model({}, equal_blocks(4, kBlock, Origin::pinned, SH_BLOCK_MUTABLE), forward(4));
    model.begin_step();
    model.rewrite(1, 5);
    model.end_step();
    SUCCEEDS(pause(model.test_device()));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
    SUCCEEDS(resume(model.test_device()));
    SUCCEEDS(model.step(forward(4)));
}

TEST_F(OccupancyRuntime, AResumeWithoutRoomLeavesEverythingReleased) {
    TestDevice device({.budget_bytes = 40 * kPage});
    auto a = make(device, 4, "a");
    const sh_block all[] = {a->id(0), a->id(1), a->id(2), a->id(3)};
    copied(*a, 2);
    SUCCEEDS(pause(device));
    SUCCEEDS(sh_device_set_budget(device.get(), 3 * kPage));
    EXPECT_REFUSED(resume(device), SH_ERROR_BUDGET, "stays released");
    EXPECT_EQ(info(device, "runtime:a").state, SH_OCCUPANCY_RELEASED + 0u);
    EXPECT_EQ(device.memory().used_bytes, 0u);
    SUCCEEDS(sh_device_set_budget(device.get(), 40 * kPage));
    SUCCEEDS(sh_protect_blocks(a->runtime(), all, 4, nullptr));
    SUCCEEDS(resume(device));
    copied(*a);
}

// Engines that run, pause and end at any moment: every call has one of the statuses that it promises.
TEST_F(OccupancyRuntime, PausesAndStepsOfOtherThreadsNeverWedge) {
    TestDevice device({.budget_bytes = 60 * kPage});
    std::atomic<bool> stop{false};
    std::vector<std::thread> engines;
    for (int t = 0; t < 2; t++)
        engines.emplace_back([&, t] {
            for (int k = 0; !stop; k++) {
                auto model = make(device, 6, t ? "a" : "b");
                for (int step = 0; step < 8 && !stop; step++) {
                    const sh_status begun = sh_step_begin(model->runtime(), nullptr);
                    if (begun != SH_OK) {
                        EXPECT_TRUE(begun == SH_ERROR_INVALID_STATE || begun == SH_ERROR_BUSY) << why();
                        std::this_thread::yield();
                        continue;
                    }
                    for (size_t i = 0; i < model->size(); i++) EXPECT_SUCCEEDS(model->use(i));
                    EXPECT_SUCCEEDS(sh_step_end(model->runtime()));
                }
            }
        });
    for (int k = 0; k < 200; k++) {
        const sh_status paused = pause(device, {}, SH_OCCUPANCY_REPEAT);
        EXPECT_TRUE(paused == SH_OK || paused == SH_ERROR_BUSY) << why();
        const sh_status resumed = resume(device, {}, SH_OCCUPANCY_REPEAT);
        EXPECT_TRUE(resumed == SH_OK || resumed == SH_ERROR_BUSY) << why();
    }
    stop = true;
    for (std::thread& engine : engines) engine.join();
}

}  // namespace
}  // namespace stagehand::test
