// Memory that a runtime has to give back: its needs have grown beyond its share, it is in use at that moment, or memory
// that one runtime gives back puts another runtime beyond its share.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

uint64_t used_pages(TestDevice& device) { return device.memory().used_bytes / kPage; }

uint64_t held_pages(Model& model) { return model.stats().held_bytes / kPage; }

sh_status step(Model& model) {
    const sh_status status = sh_step_begin(model.runtime(), nullptr);
    return status == SH_OK ? sh_step_end(model.runtime()) : status;
}

TEST(GiveBack, all_of_it_where_a_runtime_needs_more_than_it_may_have) {
    TestDevice device({.budget_bytes = 100 * kPage});
    Model a(device, equal_blocks(50, kPage)), b(device, equal_blocks(10, 2 * kPage));
    SUCCEEDS(a.schedule(forward(50)));
    SUCCEEDS(b.schedule(forward(10)));
    SUCCEEDS(step(a));
    EXPECT_EQ(held_pages(a), 50u);
    sh_scope* reservation = nullptr;
    SUCCEEDS(sh_reserve(b.runtime(), 20 * kPage, SH_PRIORITY_PRIMARY, &reservation));
    SUCCEEDS(a.add({.bytes = 30 * kPage}));
    SUCCEEDS(a.schedule(forward(51)));
    SUCCEEDS(sh_device_set_budget(device.get(), 40 * kPage));
    EXPECT_LE(used_pages(device), 40u);
    SUCCEEDS(step(b));
    EXPECT_GE(held_pages(b), 20u) << "what is reserved for it can be had";
    EXPECT_EQ(step(a), SH_ERROR_BUDGET);
    SUCCEEDS(sh_scope_end(reservation));
    SUCCEEDS(sh_trim(b.runtime(), 0, nullptr));
    SUCCEEDS(step(a));
}

// The runtime is asked to change while a load delays it. A view is acquired before the runtime can change.
TEST(GiveBack, a_guest_that_came_to_be_used_gives_back_after_that) {
    SoloModel host({.budget_bytes = 40 * kPage}, {});  // the second of two blocks takes the memory of the first
    Model guest(host.test_device(), equal_blocks(10, 2 * kPage), {.unordered_bytes = 4 * kPage});
    SUCCEEDS(guest.schedule(forward(10)));
    struct Gate {
        std::atomic<bool> entered{false}, open{false};
        static int32_t fill(void* buffer, uint64_t, uint64_t bytes, void* self) {
            static_cast<Gate*>(self)->entered = true;
            while (!static_cast<Gate*>(self)->open) std::this_thread::yield();
            std::memset(buffer, 0, bytes);
            return 0;
        }
    } gate;
    sh_segment slow = fill_segment(Gate::fill, &gate, 4 * kPage);
    const sh_block filled = register_block(guest.runtime(), slow, SH_BLOCK_UNORDERED);
    SUCCEEDS(guest.add({.bytes = 4 * kPage, .flags = SH_BLOCK_UNORDERED}));
    const sh_block other = guest.id(10);

    sh_scope* scope = nullptr;
    sh_guest_options terms = SH_GUEST_OPTIONS_INIT;
    terms.bytes = 24 * kPage;
    SUCCEEDS(sh_guest_begin(guest.runtime(), &terms, &scope));
    SUCCEEDS(sh_plan(guest.runtime(), nullptr, nullptr));
    SUCCEEDS(sh_prefetch(guest.runtime(), &filled, 1));
    while (!gate.entered) std::this_thread::yield();
    // The acquire waits for that load, and the end of the scope waits for the acquire. In another order, nothing else
    // can happen either.
    std::thread uses([&] {
        auto view = sh_sized<sh_view>();
        EXPECT_SUCCEEDS(sh_acquire(guest.runtime(), other, SH_STREAM_HOST, 0, &view));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_SUCCEEDS(sh_release(guest.runtime(), other, SH_STREAM_HOST));
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::thread ends([&] { EXPECT_SUCCEEDS(sh_scope_end(scope)); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open = true;
    ends.join();
    uses.join();
    SUCCEEDS(sh_runtime_synchronize(guest.runtime()));
    EXPECT_EQ(used_pages(host.test_device()), 0u) << "the guest has left, and nothing is used";
}

TEST(GiveBack, those_too_that_the_others_changes_put_beyond_their_share) {
    TestDevice device({.budget_bytes = 80 * kPage, .link_bytes_per_second = 1'000'000'000});
    Model a(device, equal_blocks(30, 2 * kPage)), b(device, equal_blocks(30, 2 * kPage));
    SUCCEEDS(a.schedule(forward(30), 50000));
    SUCCEEDS(b.schedule(forward(30), 10));
    for (Model* model : {&a, &b, &b, &a, &b}) SUCCEEDS(step(*model));
    for (int k = 0; k < 30; k++) SUCCEEDS(step(a));
    SUCCEEDS(a.schedule(forward(30), 10));
    SUCCEEDS(sh_device_set_budget(device.get(), 50 * kPage));
    EXPECT_LE(used_pages(device), 50u);
}

}  // namespace
}  // namespace stagehand::test
