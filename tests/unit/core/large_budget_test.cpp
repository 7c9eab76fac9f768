// Budgets that are larger than the device. They bound nothing, and the library uses the free memory all the same.
#include <algorithm>

#include "engine.h"

namespace stagehand::test {
namespace {

constexpr uint64_t kCapacity = 4 << 20;
const uint64_t kBudgets[] = {UINT64_MAX, UINT64_MAX / 2 + 1, uint64_t(1) << 40, 65 * kCapacity, 2 * kCapacity};

DeviceSettings settings(uint64_t budget_bytes) {
    DeviceSettings settings;
    settings.options = "capacity=4MiB;staging_piece=16KiB;poison=1";
    settings.budget_bytes = budget_bytes;
    return settings;
}

class LargeBudget : public testing::TestWithParam<uint64_t> {
protected:
    void SetUp() override {
        if (!on_host_backend()) GTEST_SKIP() << "the test needs a device whose size it can choose";
    }
};

// The library leaves a twentieth of the device to others.
TEST_P(LargeBudget, is_used_as_far_as_memory_is_free) {
    SoloModel model(settings(GetParam()), equal_blocks(280, 4 * kPage), forward(280));
    for (int k = 0; k < 3; k++) SUCCEEDS(model.step(forward(280)));
    EXPECT_GE(model.plan().budget_bytes, kCapacity * 93 / 100);
    EXPECT_GE(model.stats().held_bytes, kCapacity * 93 / 100);
    EXPECT_LE(model.memory().peak_bytes, kCapacity * 95 / 100);
}

TEST_P(LargeBudget, has_pages_for_the_device_that_is_there) {
    const uint64_t page =
        TestDevice({.options = "capacity=256MiB", .budget_bytes = 256 << 20, .page_bytes = 0}).memory().page_bytes;
    const TestDevice large(
        {.options = "capacity=256MiB", .budget_bytes = std::max<uint64_t>(GetParam(), 257 << 20), .page_bytes = 0});
    EXPECT_EQ(large.memory().page_bytes, page);
}

TEST_P(LargeBudget, promises_no_more_than_is_free) {
    TestDevice device(settings(GetParam()));
    EXPECT_LE(device.memory().headroom_bytes, kCapacity);
    EXPECT_GE(device.memory().headroom_bytes, kCapacity * 93 / 100);
    Model host(device, equal_blocks(4, 4 * kPage)), guest(device, equal_blocks(4, 4 * kPage));
    for (Model* model : {&host, &guest}) SUCCEEDS(model->schedule(forward(4)));
    EXPECT_EQ(sh_reserve(host.runtime(), 2 * kCapacity, SH_PRIORITY_PRIMARY, nullptr), SH_ERROR_BUDGET);
    EXPECT_EQ(sh_reserve(host.runtime(), UINT64_MAX, SH_PRIORITY_PRIMARY, nullptr), SH_ERROR_BUDGET);
    SUCCEEDS(sh_reserve(host.runtime(), kCapacity / 2, SH_PRIORITY_PRIMARY, nullptr));
    for (const uint64_t bytes : {2 * kCapacity, UINT64_MAX}) {
        sh_guest_options options = SH_GUEST_OPTIONS_INIT;
        options.workspace_bytes = bytes;
        sh_scope* scope = nullptr;
        EXPECT_EQ(sh_guest_begin(guest.runtime(), &options, &scope), SH_ERROR_BUDGET);
        options = SH_GUEST_OPTIONS_INIT;
        options.bytes = bytes;
        EXPECT_EQ(sh_guest_begin(guest.runtime(), &options, &scope), SH_ERROR_BUDGET);
    }
    for (Model* model : {&host, &guest}) SUCCEEDS(model->step(forward(4)));
}

TEST_P(LargeBudget, may_be_set_later) {
    SoloModel model(settings(64 * kPage), equal_blocks(280, 4 * kPage), forward(280));
    SUCCEEDS(model.step(forward(280)));
    EXPECT_LE(model.stats().held_bytes, 64 * kPage);
    SUCCEEDS(sh_device_set_budget(model.device(), GetParam()));
    EXPECT_LE(model.memory().headroom_bytes, kCapacity) << "before anybody has asked for memory";
    for (int k = 0; k < 2; k++) SUCCEEDS(model.step(forward(280)));
    EXPECT_GE(model.stats().held_bytes, kCapacity * 93 / 100);
    SUCCEEDS(sh_device_set_budget(model.device(), 64 * kPage));
    SUCCEEDS(model.step(forward(280)));
    EXPECT_LE(model.memory().used_bytes, 64 * kPage);
}

TEST_P(LargeBudget, is_no_reason_not_to_measure_the_link) {
    DeviceSettings unmeasured = settings(GetParam());
    unmeasured.link_bytes_per_second = 0;
    SoloModel model(unmeasured, equal_blocks(8, 4 * kPage), forward(8));
    EXPECT_NE(model.plan().link_bytes_per_second, 16'000'000'000u) << "what is taken where nothing could be measured";
}

INSTANTIATE_TEST_SUITE_P(Sizes, LargeBudget, testing::ValuesIn(kBudgets));

}  // namespace
}  // namespace stagehand::test
