// The budget and its division: smallest budgets, budgets that change, two runtimes, several streams and threads.
#include <algorithm>
#include <thread>

#include "base/size_text.h"
#include "engine.h"
#include "host/host_backend.h"

namespace stagehand::test {
namespace {

TEST(Budget, less_than_the_smallest_is_refused_with_the_figures) {
    std::vector<BlockSpec> specs = equal_blocks(4, 3 * kPage);
    specs[2] = {10 * kPage - 5, Origin::pinned, 0, nullptr, nullptr, "the large one"};
    SoloModel model({.budget_bytes = 9 * kPage}, specs, forward(4));
    EXPECT_EQ(sh_step_begin(model.runtime(), nullptr), SH_ERROR_BUDGET);
    const std::string text = why();
    EXPECT_NE(text.find(std::to_string(10 * kPage)), std::string::npos) << text;
    EXPECT_NE(text.find("the large one"), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(10 * kPage - 5)), std::string::npos) << text;
    sh_plan_options options = {sizeof options, SH_PLAN_DRY_RUN, 9 * kPage, 0};
    auto info = sh_sized<sh_plan_info>();
    EXPECT_EQ(sh_plan(model.runtime(), &options, &info), SH_ERROR_BUDGET);
    // With one page more it runs.
    options.budget_bytes = 10 * kPage;
    SUCCEEDS(sh_device_set_budget(model.device(), 10 * kPage));
    SUCCEEDS(sh_plan(model.runtime(), &options, &info));
    EXPECT_EQ(info.smallest_budget_bytes, 10 * kPage);
    EXPECT_EQ(info.smallest_budget_block, model.id(2));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(4)));
    EXPECT_EQ(sh_device_set_budget(model.device(), 9 * kPage), SH_ERROR_BUDGET);
    EXPECT_EQ(model.memory().budget_bytes, 10 * kPage);
    SUCCEEDS(model.step(forward(4)));
}

// Only the option unordered_bytes asks for so much memory: neither the largest block outside the order nor the device
// does.
TEST(Budget, less_than_unordered_bytes_is_refused_by_its_name) {
    for (const bool ordered : {false, true}) {
        std::vector<BlockSpec> specs = equal_blocks(6, 2 * kPage, Origin::pinned, SH_BLOCK_UNORDERED);
        specs.push_back({2 * kPage});
        if (!ordered) specs[0].bytes = 2 * kPage;
        SoloModel model({.budget_bytes = 9 * kPage}, specs, {}, {.unordered_bytes = 8 * kPage});
        if (ordered) {
            SUCCEEDS(model.schedule({6}));
        } else {
            SUCCEEDS(sh_device_set_budget(model.device(), 7 * kPage));
        }
        EXPECT_REFUSED(model.use(0), SH_ERROR_BUDGET,
                       "asked for by its unordered_bytes, " + exact_size_text(8 * kPage));
        EXPECT_EQ(why().find("asked for by block"), std::string::npos) << why();
        // A floor: all of them get more where it is there.
        SUCCEEDS(sh_device_set_budget(model.device(), 20 * kPage));
        for (size_t i = 0; i < 6; i++) SUCCEEDS(model.use(i));
        EXPECT_EQ(model.stats().unordered_bytes, (ordered ? 12 : 14) * kPage);
    }
}

TEST(Budget, less_than_what_it_needs_under_its_own_ceiling_names_that) {
    std::vector<BlockSpec> specs = equal_blocks(4, 4 * kPage);
    specs[0].name = "the first";
    SoloModel model({}, specs, forward(4), {.max_bytes = 3 * kPage + 7});
    EXPECT_EQ(sh_step_begin(model.runtime(), nullptr), SH_ERROR_BUDGET);
    for (const std::string& part :
         {"max_bytes, " + exact_size_text(3 * kPage), exact_size_text(4 * kPage), std::string("the first")})
        EXPECT_NE(why().find(part), std::string::npos) << part << ": " << why();
    EXPECT_EQ(why().find("the budget"), std::string::npos) << why();
}

// The library measures the link before the first plan, with memory that counts too.
TEST(Budget, a_model_with_a_ceiling_leaves_the_rest_of_the_device_alone_at_every_moment) {
    DeviceSettings unmeasured{.budget_bytes = 100 * kPage};
    unmeasured.link_bytes_per_second = 0;
    SoloModel model(unmeasured, equal_blocks(10, 3 * kPage), forward(10), {.max_bytes = 8 * kPage});
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(10)));
    EXPECT_NE(model.plan().link_bytes_per_second, 16'000'000'000u) << "what is taken where nothing could be measured";
    EXPECT_LE(model.memory().peak_bytes, 8 * kPage);
    if (!on_host_backend()) return;
    for (const host::MemoryStatistics& host : host::all_memory_statistics()) EXPECT_LE(host.peak_bytes, 8 * kPage);
}

// Models and memory of sh_alloc() come in several threads while the link is measured.
TEST(Budget, holds_while_the_link_is_measured_beside_others) {
    if (!on_host_backend()) GTEST_SKIP() << "the test needs a device whose size it can choose";
    for (int round = 0; round < 20; round++) {
        DeviceSettings unmeasured{.options = "capacity=4MiB;staging_piece=16KiB;poison=1", .budget_bytes = 640 * kPage};
        unmeasured.link_bytes_per_second = 0;
        TestDevice device(unmeasured);
        std::vector<std::thread> threads;
        for (int i = 0; i < 2; i++)
            threads.emplace_back([&device] {
                Model model(device, equal_blocks(10, 40 * kPage), {.share_wait_ns = UINT64_MAX});
                SUCCEEDS(model.schedule(forward(10)));
                for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(10)));
            });
        threads.emplace_back([&device] {
            const sh_alloc_options options = SH_ALLOC_OPTIONS_INIT;
            uint64_t address = 0;
            sh_status status = SH_ERROR_BUSY;
            while (status == SH_ERROR_BUSY) status = sh_alloc(device.get(), 300 * kPage, &options, &address);
            SUCCEEDS(status);
            SUCCEEDS(sh_free(device.get(), address));
        });
        for (std::thread& thread : threads) thread.join();
        EXPECT_LE(device.memory().peak_bytes, 640 * kPage);
        for (const host::MemoryStatistics& host : host::all_memory_statistics())
            EXPECT_LE(host.peak_bytes, 640 * kPage) << "round " << round;
    }
}

TEST(Budget, moves_between_steps) {
    SoloModel model({.budget_bytes = 30 * kPage}, unequal_blocks(12, Origin::pageable), forward(12));
    std::vector<void*> addresses(12);
    const sh_stream stream = model.stream();
    for (const uint64_t pages : {30, 12, 20, 9, 100, 10, 60}) {
        SUCCEEDS(sh_device_set_budget(model.device(), pages * kPage));
        EXPECT_LE(model.memory().used_bytes, pages * kPage) << "a runtime between steps gives back at once";
        for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(12), stream));
        EXPECT_LE(model.memory().used_bytes, pages * kPage);
        for (size_t i = 0; i < 12; i++) {
            void* const address = model.state(i).address;
            if (addresses[i] && !devices_without_pages()) {
                EXPECT_EQ(address, addresses[i]);
            }
            addresses[i] = address;
        }
    }
    model.synchronize();
    for (const host::MemoryStatistics& host : host::all_memory_statistics()) EXPECT_LE(host.peak_bytes, 100 * kPage);
}

TEST(Budget, lowered_in_a_step_takes_effect_at_its_edge) {
    SoloModel model({.budget_bytes = 40 * kPage}, equal_blocks(8, 5 * kPage), forward(8));
    SUCCEEDS(model.step(forward(8)));
    model.begin_step();
    SUCCEEDS(sh_device_set_budget(model.device(), 12 * kPage));
    for (size_t i = 0; i < 8; i++) SUCCEEDS(model.use(i));
    model.end_step();
    SUCCEEDS(model.step(forward(8)));
    EXPECT_LE(model.memory().used_bytes, 12 * kPage);
}

TEST(Budget, a_second_opening_gets_the_same_device) {
    TestDevice device({.budget_bytes = 20 * kPage});
    sh_device_options options = SH_DEVICE_OPTIONS_INIT;
    sh_device* again = nullptr;
    auto caps = sh_sized<sh_device_caps>();  // its whole name, "host:0"
    SUCCEEDS(sh_device_get_caps(device.get(), &caps));
    SUCCEEDS(sh_device_open(caps.name, &options, &again));
    EXPECT_EQ(again, device.get());
    sh_device_close(again);
    EXPECT_EQ(device.memory().budget_bytes, 20 * kPage);
}

// The step uses A{0,1} on one stream and B{2,3} on another stream, and then C{1,2}. The copy of C waits for both
// streams.
TEST(Streams, a_copy_waits_for_the_last_uses_on_all_streams) {
    // Three blocks of four pages in a ring of six: A takes 0-3, B 4-5 and 0-1, C 2-5.
    SoloModel model({.budget_bytes = 6 * kPage}, equal_blocks(3, 4 * kPage));
    SUCCEEDS(model.schedule(forward(3), 1));
    const sh_stream streams[] = {model.stream(), model.stream(), model.stream()};
    for (int k = 0; k < 30; k++) {
        model.begin_step();
        for (size_t n = 0; n < 3; n++) {
            const size_t i = (k % 3 == 2) ? 2 - n : n;
            if (k % 4 == 3 && i == 1) continue;  // skipped
            SUCCEEDS(model.use(i, streams[(i + static_cast<size_t>(k)) % 3], 0,
                               300000));  // slow: the next copy would overtake it
        }
        model.end_step();
    }
}

}  // namespace
}  // namespace stagehand::test
