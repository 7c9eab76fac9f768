// Memory that a runtime gives back on request, and runtimes that learn that other runtimes need memory.
#include <algorithm>
#include <thread>

#include "several_models.h"

namespace stagehand::test {
namespace {

TEST(Trim, gives_back_at_once_and_the_next_step_takes_it_again) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 12, "a");
    copied(*a, 2);
    EXPECT_EQ(device.memory().used_bytes, 48 * kPage);
    uint64_t bytes = 0;
    SUCCEEDS(sh_trim(a->runtime(), 20 * kPage + 7, &bytes));
    EXPECT_LE(bytes, 20 * kPage);
    EXPECT_GE(bytes, 16 * kPage);
    EXPECT_EQ(a->stats().held_bytes, bytes);
    EXPECT_EQ(device.memory().used_bytes, bytes) << "the driver has the rest";
    EXPECT_EQ(device.memory().headroom_bytes, device.memory().budget_bytes - 4 * kPage)
        << "what it needs to run is not for guests";
    copied(*a);
    EXPECT_EQ(copied(*a), 0u) << "it has all again";
    SUCCEEDS(sh_trim(a->runtime(), 0, &bytes));
    EXPECT_EQ(bytes, 0u);
    EXPECT_EQ(device.memory().used_bytes, 0u);
    EXPECT_EQ(device.memory().headroom_bytes, 60 * kPage);
    SUCCEEDS(sh_trim(a->runtime(), 0, nullptr));
    EXPECT_EQ(copied(*a), 12 * kBlock);
}

TEST(Trim, keeps_what_is_protected_or_reserved) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 12, "a");
    copied(*a, 2);
    sh_scope *reservation = nullptr, *protection = nullptr;
    SUCCEEDS(sh_reserve(a->runtime(), 24 * kPage, SH_PRIORITY_PRIMARY, &reservation));
    uint64_t bytes = 0;
    SUCCEEDS(sh_trim(a->runtime(), 0, &bytes));
    EXPECT_EQ(bytes, 24 * kPage);
    SUCCEEDS(sh_scope_end(reservation));
    copied(*a);
    const sh_block first = a->id(0);
    SUCCEEDS(sh_protect_blocks(a->runtime(), &first, 1, &protection));
    SUCCEEDS(sh_trim(a->runtime(), 0, &bytes));
    EXPECT_GE(bytes, kBlock);
    EXPECT_LE(bytes, 3 * kBlock);
    EXPECT_EQ(a->state(0).present_bytes, kBlock);
    SUCCEEDS(sh_scope_end(protection));
}

TEST(Trim, writes_back_what_is_dirty) {
    SoloModel model({}, equal_blocks(4, kBlock, Origin::pinned, SH_BLOCK_MUTABLE), forward(4));
    model.begin_step();
    model.rewrite(1, 5);
    model.end_step();
    SUCCEEDS(sh_trim(model.runtime(), 0, nullptr));
    EXPECT_EQ(model.source(1).read(), *model.truth(1));
    SUCCEEDS(model.step(forward(4)));
}

struct Felt {
    std::atomic<int> times{0};
    std::atomic<uint64_t> bytes{0};
    sh_runtime* runtime = nullptr;
    static void feel(sh_runtime* runtime, uint64_t bytes, void* data) {
        static_cast<Felt*>(data)->times++;
        static_cast<Felt*>(data)->bytes = bytes;
        static_cast<Felt*>(data)->runtime = runtime;
    }
};

TEST(Pressure, is_told_to_a_runtime_that_cannot_give_up_at_once) {
    TestDevice device({.budget_bytes = 60 * kPage});
    auto a = make(device, 20, "a"), b = make(device, 20, "b");
    Felt felt;
    SUCCEEDS(sh_set_pressure(a->runtime(), &Felt::feel, &felt));
    copied(*a, 2);
    SUCCEEDS(sh_reserve(b->runtime(), 10 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_EQ(felt.times, 0) << "between steps it gives up what is wanted";
    a->begin_step();
    SUCCEEDS(sh_reserve(b->runtime(), 30 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_EQ(felt.times, 1);
    EXPECT_EQ(felt.bytes, 20 * kPage);
    EXPECT_EQ(felt.runtime, a->runtime());
    a->end_step();
    copied(*b);
    EXPECT_GE(b->stats().share_bytes, 30 * kPage);
    SUCCEEDS(sh_set_pressure(a->runtime(), nullptr, nullptr));
    a->begin_step();
    SUCCEEDS(sh_reserve(b->runtime(), 40 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_EQ(felt.times, 1);
    a->end_step();
}

}  // namespace
}  // namespace stagehand::test
