// Device memory that others take and give back, inside or outside the process. Growth leaves room for it, and an
// automatic budget follows it.
#include <chrono>
#include <thread>

#include "engine.h"
#include "fault/fault.h"
#include "plugin.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kMiB = 1 << 20;

void others_take(uint64_t bytes) { ASSERT_EQ(FAULT(sh_fault_take)(bytes), SH_OK); }

// The library reads the free memory again only after some time.
void wait_a_while() { std::this_thread::sleep_for(std::chrono::milliseconds(120)); }

DeviceSettings settings(uint64_t budget_bytes) {
    DeviceSettings settings;
    settings.name = "fault";
    settings.options = "wrap=host;capacity=40MiB;staging_piece=16KiB";
    settings.budget_bytes = budget_bytes;
    settings.page_bytes = 64 << 10;
    return settings;
}

TEST(FreeMemory, growth_stops_before_what_others_have_taken_and_goes_on_when_they_give_it_back) {
    SoloModel model(settings(32 * kMiB), equal_blocks(12, 2 * kMiB), forward(12));
    others_take(26 * kMiB);  // of 40: 14 are left, and a reserve of 2 stays free
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(12)));
    EXPECT_LE(model.memory().used_bytes, 12 * kMiB);
    EXPECT_GE(model.memory().used_bytes, 11 * kMiB);
    // The library keeps the memory that it holds, whoever takes the rest.
    const uint64_t held = model.memory().used_bytes;
    others_take(40 * kMiB - held);
    for (int k = 0; k < 2; k++) {
        wait_a_while();
        SUCCEEDS(model.step(forward(12)));
    }
    EXPECT_EQ(model.memory().used_bytes, held);
    others_take(0);
    for (int k = 0; k < 3; k++) {
        wait_a_while();
        SUCCEEDS(model.step(forward(12)));
    }
    EXPECT_EQ(model.memory().used_bytes, 24 * kMiB) << "all of the model";
    EXPECT_EQ(model.memory().budget_bytes, 32 * kMiB) << "the ceiling has not moved";
}

// Little memory is left on the device, and far less than the budget. The library uses it all the same.
TEST(FreeMemory, what_little_is_left_under_a_large_budget_is_used) {
    for (const uint64_t budget : {40 * kMiB * 65, uint64_t(1) << 40, UINT64_MAX}) {
        SoloModel model(settings(budget), equal_blocks(12, 2 * kMiB), forward(12));
        others_take(30 * kMiB);  // of 40: 10 are left, and a reserve of 2 stays free
        for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(12)));
        EXPECT_LE(model.memory().used_bytes, 8 * kMiB);
        EXPECT_GE(model.memory().used_bytes, 8 * kMiB * 98 / 100);
        others_take(0);
    }
}

TEST(FreeMemory, an_automatic_budget_follows_it_both_ways) {
    SoloModel model(settings(0), equal_blocks(20, 2 * kMiB), forward(20));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(20)));
    EXPECT_LE(model.memory().used_bytes, 36 * kMiB) << "a tenth is left to others";
    EXPECT_GE(model.memory().used_bytes, 35 * kMiB);
    // The headroom stays free for other users of the device, even if they take the free memory.
    for (const uint64_t taken : {4, 8, 12}) {
        others_take(taken * kMiB);
        for (int k = 0; k < 2; k++) {
            wait_a_while();
            SUCCEEDS(model.step(forward(20)));
        }
        EXPECT_LE(model.memory().used_bytes, (36 - taken) * kMiB);
        EXPECT_GE(model.memory().used_bytes, (34 - taken) * kMiB);
    }
    others_take(0);
    for (int k = 0; k < 3; k++) {
        wait_a_while();
        SUCCEEDS(model.step(forward(20)));
    }
    EXPECT_GE(model.memory().used_bytes, 35 * kMiB);
}

// Reserved memory stays, whatever others take.
TEST(FreeMemory, what_is_reserved_is_not_given_up) {
    TestDevice device(settings(0));
    Model model(device, equal_blocks(10, 2 * kMiB)), other(device, equal_blocks(10, 2 * kMiB));
    for (Model* each : {&model, &other}) SUCCEEDS(each->schedule(forward(10)));
    SUCCEEDS(model.step(forward(10)));
    SUCCEEDS(sh_reserve(model.runtime(), 20 * kMiB, SH_PRIORITY_PRIMARY, nullptr));
    SUCCEEDS(other.step(forward(10)));
    others_take(38 * kMiB);
    for (int k = 0; k < 3; k++) {
        wait_a_while();
        SUCCEEDS(other.step(forward(10)));
    }
    const uint64_t before = model.stats().bytes_to_device;
    SUCCEEDS(model.step(forward(10)));
    EXPECT_EQ(model.stats().bytes_to_device, before);
    EXPECT_EQ(model.stats().given_up_bytes, 0u);
}

}  // namespace
}  // namespace stagehand::test
