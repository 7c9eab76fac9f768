// Guests: the library lets a guest in or refuses it, never at the cost of reserved memory. A guest leaves when its
// scope ends.
#include <algorithm>

#include "base/size_text.h"
#include "engine.h"
#include "several_models.h"

namespace stagehand::test {
namespace {

sh_guest_options terms(uint64_t bytes, uint64_t workspace = 0, uint32_t flags = 0) {
    return {sizeof(sh_guest_options), flags, bytes, workspace, 0};
}

TEST(Guest, gets_what_nobody_has_reserved_and_leaves_it_behind) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 20, "host"), guest = make(device, 6, "guest");
    for (int k = 0; k < 2; k++) SUCCEEDS(host->step(forward(20)));
    SUCCEEDS(sh_reserve(host->runtime(), 32 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_EQ(device.memory().headroom_bytes, 32 * kPage);
    sh_scope* const scope = guest->begin_guest();
    EXPECT_EQ(guest->stats().guest_bytes, 24 * kPage);
    EXPECT_EQ(device.memory().guest_bytes, 24 * kPage);
    EXPECT_EQ(device.memory().headroom_bytes, 8 * kPage);
    EXPECT_GE(host->stats().held_bytes, 32 * kPage);
    EXPECT_LE(host->stats().held_bytes, 40 * kPage) << "it gives up what is not reserved, and no more than is wanted";
    EXPECT_GE(host->stats().held_bytes, 39 * kPage);
    for (int k = 0; k < 3; k++) SUCCEEDS(guest->step(forward(6)));
    EXPECT_EQ(guest->stats().bytes_to_device, 6 * kBlock);
    SUCCEEDS(host->step(forward(20)));
    EXPECT_GE(host->stats().held_bytes, 32 * kPage);
    SUCCEEDS(sh_scope_end(scope));
    for (size_t i = 0; i < 6; i++) EXPECT_EQ(guest->state(i).present_bytes, 0u);
    EXPECT_EQ(guest->stats().held_bytes, 0u);
    EXPECT_EQ(device.memory().guest_bytes, 0u);
    EXPECT_EQ(device.memory().headroom_bytes, 32 * kPage);
    SUCCEEDS(host->step(forward(20)));
    EXPECT_EQ(host->stats().held_bytes, 64 * kPage) << "the others have their memory again";
    EXPECT_LE(device.memory().peak_bytes, 64 * kPage);
}

TEST(Guest, is_refused_with_the_figures_and_nothing_changes) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 20, "host"), guest = make(device, 10, "guest");
    for (int k = 0; k < 2; k++) SUCCEEDS(host->step(forward(20)));
    SUCCEEDS(sh_reserve(host->runtime(), 40 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    const sh_memory_info before = device.memory();
    const sh_runtime_stats held = host->stats();
    sh_scope* scope = nullptr;
    EXPECT_EQ(sh_guest_begin(guest->runtime(), nullptr, &scope), SH_ERROR_BUDGET);
    EXPECT_EQ(scope, nullptr);
    for (const std::string& part :
         {std::string("\"guest\""), "needs " + exact_size_text(40 * kPage),
          "headroom is " + exact_size_text(24 * kPage), "has reserved " + exact_size_text(40 * kPage)})
        EXPECT_NE(why().find(part), std::string::npos) << part << ": " << why();
    EXPECT_EQ(device.memory().headroom_bytes, before.headroom_bytes);
    EXPECT_EQ(device.memory().guest_bytes, 0u);
    EXPECT_EQ(host->stats().held_bytes, held.held_bytes);
    EXPECT_EQ(host->stats().given_up_bytes, held.given_up_bytes);
    // Guests do not get memory of secondary reservations either.
    SUCCEEDS(sh_reserve(host->runtime(), 40 * kPage, SH_PRIORITY_SECONDARY, nullptr));
    EXPECT_EQ(sh_guest_begin(guest->runtime(), nullptr, &scope), SH_ERROR_BUDGET);
    EXPECT_EQ(host->stats().reserved_bytes, 40 * kPage);
    // The workspace of the guest's engine is not taken from a reservation either.
    sh_guest_options options = terms(20 * kPage, 5 * kPage);
    EXPECT_EQ(sh_guest_begin(guest->runtime(), &options, &scope), SH_ERROR_BUDGET);
    options = terms(3 * kPage);
    EXPECT_REFUSED(sh_guest_begin(guest->runtime(), &options, &scope), SH_ERROR_BUDGET,
                   "the smallest that works is " + exact_size_text(4 * kPage));
}

TEST(Guest, may_shrink) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 20, "host"), guest = make(device, 10, "guest");
    for (int k = 0; k < 2; k++) SUCCEEDS(host->step(forward(20)));
    SUCCEEDS(sh_reserve(host->runtime(), 40 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    sh_guest_options options = terms(0, 4 * kPage, SH_GUEST_SHRINK);
    sh_scope* scope = guest->begin_guest(options);
    EXPECT_EQ(guest->stats().guest_bytes, 20 * kPage);
    EXPECT_EQ(device.memory().guest_bytes, 24 * kPage);
    EXPECT_EQ(device.memory().headroom_bytes, 0u);
    EXPECT_LE(device.memory().used_bytes, 60 * kPage) << "the workspace is the engine's";
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(guest->step(forward(10)));
        SUCCEEDS(host->step(forward(20)));
        EXPECT_LE(device.memory().used_bytes, 60 * kPage);
    }
    EXPECT_GE(host->stats().held_bytes, 40 * kPage);
    EXPECT_LE(guest->stats().held_bytes, 20 * kPage);
    SUCCEEDS(sh_scope_end(scope));
    SUCCEEDS(sh_reserve(host->runtime(), 62 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    EXPECT_EQ(sh_guest_begin(guest->runtime(), &options, &scope), SH_ERROR_BUDGET) << "less than its smallest plan";
}

TEST(Guest, writes_back_what_is_dirty_when_it_leaves) {
    TestDevice device;
    auto host = make(device, 4, "host"), guest = make(device, 4, "guest", SH_BLOCK_MUTABLE);
    sh_scope* const scope = guest->begin_guest();
    guest->begin_step();
    guest->rewrite(1, 9);
    guest->end_step();
    SUCCEEDS(sh_scope_end(scope));
    EXPECT_EQ(guest->source(1).read(), *guest->truth(1));
    EXPECT_EQ(guest->stats().held_bytes, 0u);
}

TEST(Guest, gets_no_more_than_its_ceiling) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 8, "host");
    Model guest(device, equal_blocks(8, kBlock), {.max_bytes = 12 * kPage});
    SUCCEEDS(guest.schedule(forward(8)));
    const sh_guest_options options = terms(40 * kPage);
    sh_scope* const scope = guest.begin_guest(options);
    EXPECT_EQ(guest.stats().guest_bytes, 12 * kPage);
    EXPECT_EQ(guest.stats().share_bytes, 12 * kPage);
    EXPECT_EQ(device.memory().headroom_bytes, 52 * kPage);
    SUCCEEDS(guest.step(forward(8)));
    EXPECT_EQ(guest.stats().held_bytes, 12 * kPage);
    SUCCEEDS(sh_scope_end(scope));
}

// The library takes pages from the runtime that uses them furthest in the future.
TEST(Guest, takes_from_the_runtime_that_is_used_last) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto idle = make(device, 8, "idle"), busy = make(device, 8, "busy"), guest = make(device, 5, "guest");
    SUCCEEDS(idle->step(forward(8)));
    for (int k = 0; k < 20; k++) SUCCEEDS(busy->step(forward(8)));
    const uint64_t before = busy->stats().held_bytes;
    EXPECT_EQ(before + idle->stats().held_bytes, 64 * kPage);
    sh_scope* const scope = guest->begin_guest();
    EXPECT_EQ(busy->stats().held_bytes, before);
    EXPECT_EQ(idle->stats().held_bytes, 12 * kPage);
    SUCCEEDS(guest->step(forward(5)));
    EXPECT_EQ(guest->stats().held_bytes, 20 * kPage);
    SUCCEEDS(sh_scope_end(scope));
}

}  // namespace
}  // namespace stagehand::test
