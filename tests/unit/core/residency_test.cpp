// Device memory that stays when several runtimes share a device: protection, scopes and reservations.
#include <algorithm>
#include <thread>

#include "base/size_text.h"
#include "several_models.h"

namespace stagehand::test {
namespace {

// --- protection

TEST(Protect, what_is_resident_stays_when_another_runtime_comes) {
    for (const bool protect : {false, true}) {
        TestDevice device({.budget_bytes = 48 * kPage});
        auto a = make(device, 10, "a"), b = make(device, 10, "b");
        copied(*a);
        EXPECT_EQ(copied(*a), 0u);
        const std::vector<sh_block> some(a->ids().begin(), a->ids().begin() + 6);
        sh_scope* protection = nullptr;
        if (protect) {
            SUCCEEDS(sh_protect_blocks(a->runtime(), some.data(), some.size(), &protection));
            EXPECT_EQ(device.memory().protected_bytes, a->stats().protected_bytes);
            EXPECT_GE(a->stats().protected_bytes, 6 * kBlock);
        }
        // This model would get nearly all of the memory, because it is used far more often than the other.
        for (int k = 0; k < 20; k++) SUCCEEDS(b->step(forward(10)));
        uint64_t kept = 0;
        for (size_t i = 0; i < 6; i++) kept += a->state(i).present_bytes;
        if (protect) {
            EXPECT_EQ(kept, 6 * kBlock);
        } else {
            EXPECT_LT(kept, 6 * kBlock);
        }
        copied(*a, 2);
        for (size_t i = 0; i < 6 && protect; i++) EXPECT_EQ(a->state(i).resident_bytes, kBlock) << i;
        EXPECT_LE(device.memory().peak_bytes, 48 * kPage);
        if (protect) {
            SUCCEEDS(sh_scope_end(protection));
        }
        EXPECT_EQ(device.memory().protected_bytes, 0u);
    }
}

TEST(Protect, is_counted_and_all_or_none) {
    TestDevice device;
    auto a = make(device, 4, "a"), b = make(device, 4, "b");
    const sh_block twice[] = {a->id(0), a->id(0), a->id(1)};
    sh_scope *protection = nullptr, *other = nullptr;
    SUCCEEDS(sh_protect_blocks(a->runtime(), twice, 3, &protection));
    EXPECT_EQ(a->state(0).protections, 2u);
    EXPECT_EQ(a->state(1).protections, 1u);
    EXPECT_EQ(a->state(2).protections, 0u);
    const sh_block foreign[] = {a->id(2), b->id(0)};
    EXPECT_EQ(sh_protect_blocks(a->runtime(), foreign, 2, &other), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(other, nullptr);
    EXPECT_EQ(a->state(2).protections, 0u) << "a call that fails changes nothing";
    SUCCEEDS(sh_protect_blocks(a->runtime(), twice + 1, 2, &other));
    EXPECT_EQ(a->state(0).protections, 3u);
    EXPECT_EQ(a->state(1).protections, 2u);
    SUCCEEDS(a->remove(1));
    SUCCEEDS(sh_scope_end(protection)) << "a block that does not exist any more is no matter";
    EXPECT_EQ(a->state(0).protections, 1u);
    SUCCEEDS(sh_scope_end(other));
    EXPECT_EQ(a->state(0).protections, 0u);
    SUCCEEDS(sh_protect_blocks(a->runtime(), nullptr, 0, nullptr));
}

TEST(Protect, blocks_are_put_on_the_device_whole_by_the_next_plan) {
    TestDevice device({.budget_bytes = 24 * kPage});
    auto a = make(device, 12, "a");
    copied(*a, 2);
    const sh_block chosen[] = {a->id(3), a->id(8)};
    SUCCEEDS(sh_protect_blocks(a->runtime(), chosen, 2, nullptr));
    copied(*a, 2);
    for (const size_t i : {3, 8}) {
        EXPECT_EQ(a->state(i).resident_bytes, kBlock);
        EXPECT_EQ(a->state(i).present_bytes, kBlock);
    }
    // The blocks that are on the device stay there if not all fit.
    std::vector<uint64_t> before(12);
    for (size_t i = 0; i < 12; i++) before[i] = a->state(i).resident_bytes;
    SUCCEEDS(sh_protect_blocks(a->runtime(), a->ids().data(), 12, nullptr));
    copied(*a, 2);
    for (size_t i = 0; i < 12; i++) EXPECT_GE(a->state(i).resident_bytes, before[i]) << i;
    EXPECT_LE(device.memory().peak_bytes, 24 * kPage);
}

TEST(Protect, a_block_outside_the_order_is_not_dropped_for_others) {
    SoloModel model({.budget_bytes = 12 * kPage}, equal_blocks(8, kBlock, Origin::pinned, SH_BLOCK_UNORDERED), {},
                    {.unordered_bytes = 12 * kPage});
    SUCCEEDS(model.use(0));
    const sh_block first = model.id(0);
    sh_scope* protection = nullptr;
    SUCCEEDS(sh_protect_blocks(model.runtime(), &first, 1, &protection));
    for (int k = 0; k < 3; k++)
        for (size_t i = 1; i < 8; i++) SUCCEEDS(model.use(i));
    const uint64_t serial = model.state(0).serial;
    SUCCEEDS(model.use(0));
    EXPECT_EQ(model.state(0).serial, serial) << "it was not loaded again";
    // All that there is protected: nothing can come in.
    SUCCEEDS(model.use(1));
    SUCCEEDS(model.use(2));
    const sh_block more[] = {model.id(1), model.id(2)};
    SUCCEEDS(sh_protect_blocks(model.runtime(), more, 2, nullptr));
    EXPECT_EQ(model.use(3), SH_ERROR_HELD);
    SUCCEEDS(sh_scope_end(protection));
    SUCCEEDS(model.use(3));
    EXPECT_EQ(model.state(0).present_bytes, 0u);
    SUCCEEDS(model.remove(1));  // protected as it is
    SUCCEEDS(model.use(4));
}

// --- scopes

TEST(KeepResident, a_target_without_blocks_is_a_warning) {
    TestDevice device;
    Warnings warnings;
    sh_runtime* empty = nullptr;
    SUCCEEDS(sh_runtime_create(device.get(), nullptr, &empty));
    sh_scope* scope = nullptr;
    SUCCEEDS(sh_keep_resident(empty, &scope));
    EXPECT_TRUE(warnings.any_with("has no blocks"));
    EXPECT_EQ(device.memory().protected_bytes, 0u);
    SUCCEEDS(sh_scope_end(scope));
    sh_runtime_destroy(empty);
}

// --- reservations

TEST(Reserve, primary_memory_is_never_taken) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 7, "a"), b = make(device, 20, "b");
    copied(*a, 2);
    sh_scope *earlier = nullptr, *reservation = nullptr;
    SUCCEEDS(sh_reserve(a->runtime(), 12 * kPage, SH_PRIORITY_SECONDARY, &earlier));
    SUCCEEDS(sh_reserve(a->runtime(), 30 * kPage, SH_PRIORITY_PRIMARY, &reservation));
    SUCCEEDS(sh_scope_end(earlier)) << "another one has taken its place";
    EXPECT_EQ(device.memory().reserved_bytes, 30 * kPage);
    EXPECT_EQ(a->stats().reserved_bytes, 30 * kPage);
    for (int k = 0; k < 30; k++) SUCCEEDS(b->step(forward(20)));
    EXPECT_EQ(sh_device_set_budget(device.get(), 30 * kPage), SH_ERROR_BUDGET) << "b needs some, too";
    EXPECT_NE(why().find("has reserved " + exact_size_text(30 * kPage)), std::string::npos) << why();
    SUCCEEDS(sh_device_set_budget(device.get(), 40 * kPage));
    for (int k = 0; k < 3; k++) SUCCEEDS(b->step(forward(20)));
    EXPECT_EQ(a->stats().given_up_bytes, 0u);
    EXPECT_GE(a->stats().share_bytes, 28 * kPage) << "all of it";
    EXPECT_EQ(copied(*a), 0u);
    SUCCEEDS(sh_scope_end(reservation));
    EXPECT_EQ(device.memory().reserved_bytes, 0u);
    for (int k = 0; k < 20; k++) copied(*b);
    EXPECT_GT(a->stats().given_up_bytes, 0u);
}

TEST(Reserve, takes_what_others_have_between_their_steps) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 20, "a"), b = make(device, 20, "b");
    copied(*a, 2);
    EXPECT_EQ(a->stats().held_bytes, 60 * kPage);
    SUCCEEDS(sh_reserve(b->runtime(), 40 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_LE(a->stats().held_bytes, 20 * kPage) << "it was between steps";
    copied(*b);
    EXPECT_GE(b->stats().held_bytes, 40 * kPage);
    EXPECT_EQ(copied(*b) % kPage, 0u);
}

TEST(Reserve, nothing_to_plan_by_is_an_error_and_0_is_the_plans_footprint) {
    SoloModel unknown({.budget_bytes = 40 * kPage}, equal_blocks(4, kBlock));
    EXPECT_EQ(sh_reserve(unknown.runtime(), 0, SH_PRIORITY_PRIMARY, nullptr), SH_ERROR_INVALID_STATE);
    auto a = make(unknown.test_device(), 20, "a");
    SUCCEEDS(sh_reserve(a->runtime(), 0, SH_PRIORITY_PRIMARY, nullptr));
    const sh_plan_info plan = a->plan();
    EXPECT_EQ(a->stats().reserved_bytes, plan.resident_bytes + plan.ring_bytes);
    EXPECT_EQ(a->stats().reserved_bytes, 40 * kPage)
        << "a model that is larger than the device reserves what it streams with";
}

TEST(Reserve, secondary_gives_way_when_nothing_else_is_left_the_furthest_first_and_comes_back) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto soon = make(device, 6, "soon"), late = make(device, 6, "late"), third = make(device, 12, "third");
    copied(*late);
    std::this_thread::sleep_for(
        std::chrono::milliseconds(on_host_backend() ? 5 : 200));  // longer than a step of the other
    copied(*soon, 3);                                             // makes its steps in quick succession
    SUCCEEDS(sh_reserve(soon->runtime(), 24 * kPage, SH_PRIORITY_SECONDARY, nullptr));
    SUCCEEDS(sh_reserve(late->runtime(), 24 * kPage, SH_PRIORITY_SECONDARY, nullptr));
    for (int k = 0; k < 3; k++) copied(*third);
    EXPECT_GE(soon->stats().held_bytes, 24 * kPage) << "there is enough else: " << third->stats().held_bytes;
    EXPECT_GE(late->stats().held_bytes, 24 * kPage);
    copied(*soon, 3);
    Warnings warnings;
    sh_scope* reservation = nullptr;
    SUCCEEDS(sh_reserve(third->runtime(), 24 * kPage, SH_PRIORITY_PRIMARY, &reservation));
    EXPECT_TRUE(warnings.any_with("\"late\": of the " + exact_size_text(24 * kPage) + " that were reserved for it, " +
                                  exact_size_text(12 * kPage) + " are given up"));
    EXPECT_FALSE(warnings.any_with("\"soon\""));
    EXPECT_EQ(soon->stats().reserved_bytes, 24 * kPage);
    EXPECT_EQ(late->stats().reserved_bytes, 12 * kPage);
    EXPECT_LE(late->stats().held_bytes, 12 * kPage);
    copied(*third);
    EXPECT_GE(third->stats().held_bytes, 24 * kPage);
    SUCCEEDS(sh_scope_end(reservation));
    EXPECT_EQ(late->stats().reserved_bytes, 24 * kPage) << "in force again";
    copied(*late);
    EXPECT_GE(late->stats().held_bytes, 24 * kPage);
}

}  // namespace
}  // namespace stagehand::test
