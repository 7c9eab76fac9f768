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

TEST(Guest, gives_up_at_once_what_is_beyond_its_terms) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto guest = make(device, 6, "guest");
    for (int k = 0; k < 2; k++) SUCCEEDS(guest->step(forward(6)));
    EXPECT_EQ(guest->stats().held_bytes, 24 * kPage);
    const sh_guest_options options = terms(16 * kPage);
    sh_scope* const scope = guest->begin_guest(options);
    EXPECT_LE(guest->stats().held_bytes, 16 * kPage);
    SUCCEEDS(guest->step(forward(6)));
    EXPECT_LE(guest->stats().held_bytes, 16 * kPage);
    SUCCEEDS(sh_scope_end(scope));
}

TEST(Guest, may_take_all_that_is_not_reserved) {
    for (const uint64_t workspace : {0, 4}) {
        TestDevice device({.budget_bytes = 64 * kPage});
        auto host = make(device, 20, "host"), guest = make(device, 10, "guest");
        SUCCEEDS(host->step(forward(20)));
        SUCCEEDS(sh_reserve(host->runtime(), 32 * kPage, SH_PRIORITY_PRIMARY, nullptr));
        sh_scope* scope = nullptr;
        const sh_guest_options more = terms(33 * kPage - workspace * kPage, workspace * kPage);
        EXPECT_EQ(sh_guest_begin(guest->runtime(), &more, &scope), SH_ERROR_BUDGET);
        const sh_guest_options all = terms(32 * kPage - workspace * kPage, workspace * kPage);
        SUCCEEDS(sh_guest_begin(guest->runtime(), &all, &scope));
        EXPECT_EQ(device.memory().headroom_bytes, 0u);
        SUCCEEDS(guest->step(forward(10)));
        SUCCEEDS(sh_scope_end(scope));
    }
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

TEST(Guest, is_counted_and_two_guests_share_the_headroom) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 20, "host"), one = make(device, 6, "one"), two = make(device, 6, "two");
    SUCCEEDS(host->step(forward(20)));
    SUCCEEDS(sh_reserve(host->runtime(), 32 * kPage, SH_PRIORITY_PRIMARY, nullptr));
    sh_scope *outer = nullptr, *inner = nullptr, *other = nullptr;
    SUCCEEDS(sh_guest_begin(one->runtime(), nullptr, &outer));
    SUCCEEDS(sh_guest_begin(one->runtime(), nullptr, &inner));
    EXPECT_EQ(device.memory().guest_bytes, 24 * kPage) << "once";
    EXPECT_EQ(sh_guest_begin(two->runtime(), nullptr, &other), SH_ERROR_BUDGET);
    SUCCEEDS(one->step(forward(6)));
    SUCCEEDS(sh_scope_end(outer));
    EXPECT_EQ(one->stats().held_bytes, 24 * kPage) << "it is a guest still";
    SUCCEEDS(sh_scope_end(inner));
    EXPECT_EQ(one->stats().held_bytes, 0u);
    SUCCEEDS(sh_guest_begin(two->runtime(), nullptr, &other));
    SUCCEEDS(two->step(forward(6)));
    SUCCEEDS(sh_scope_end(other));
    EXPECT_EQ(device.memory().guest_bytes, 0u);
}

TEST(Guest, that_is_in_use_leaves_when_it_can) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 20, "host"), guest = make(device, 6, "guest");
    sh_scope* scope = nullptr;
    guest->begin_step();
    EXPECT_EQ(sh_guest_begin(guest->runtime(), nullptr, &scope), SH_ERROR_INVALID_STATE);
    guest->end_step();
    for (const bool in_step : {true, false}) {
        SUCCEEDS(sh_guest_begin(guest->runtime(), nullptr, &scope));
        if (in_step) guest->begin_step();
        guest->acquire(2);
        SUCCEEDS(sh_scope_end(scope));
        EXPECT_EQ(device.memory().guest_bytes, 0u);
        EXPECT_GT(guest->stats().held_bytes, 0u);
        guest->release(2);
        if (in_step) guest->end_step();
        EXPECT_EQ(guest->stats().held_bytes, 0u);
        EXPECT_EQ(device.memory().used_bytes, 0u);
    }
    // A guest is a runtime like any other after its scope.
    SUCCEEDS(guest->step(forward(6)));
    EXPECT_EQ(guest->stats().held_bytes, 24 * kPage);
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

TEST(Guest, ends_with_its_runtime_whatever_the_order) {
    TestDevice device;
    auto host = make(device, 4, "host"), guest = make(device, 4, "guest");
    sh_scope* const scope = guest->begin_guest();
    SUCCEEDS(guest->step(forward(4)));
    host->destroy();
    EXPECT_EQ(device.memory().guest_bytes, 16 * kPage) << "the host is not needed any more";
    guest->destroy();
    EXPECT_EQ(device.memory().guest_bytes, 0u);
    SUCCEEDS(sh_scope_end(scope));
}

TEST(Guest, mistakes_are_named) {
    TestDevice device;
    auto host = make(device, 4, "host"), guest = make(device, 4, "guest");
    sh_scope* scope = nullptr;
    EXPECT_EQ(sh_guest_begin(nullptr, nullptr, &scope), SH_ERROR_INVALID_HANDLE);
    EXPECT_EQ(sh_guest_begin(guest->runtime(), nullptr, nullptr), SH_ERROR_INVALID_ARGUMENT);
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.flags = 2;
    EXPECT_EQ(sh_guest_begin(guest->runtime(), &options, &scope), SH_ERROR_INVALID_ARGUMENT);
    options = SH_GUEST_OPTIONS_INIT;
    options.struct_size = 3;
    EXPECT_EQ(sh_guest_begin(guest->runtime(), &options, &scope), SH_ERROR_INVALID_STRUCT);
    EXPECT_EQ(device.memory().guest_bytes, 0u);
}

// The workspace of a guest is free when the guest is let in, even if the library loads nothing for the guest.
TEST(Guest, without_blocks_has_its_workspace_given_up_at_once) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 16, "host");
    Model guest(device, {});
    SUCCEEDS(host->step(forward(16)));
    EXPECT_EQ(device.memory().used_bytes, 64 * kPage);
    const sh_guest_options options = terms(0, 40 * kPage);
    sh_scope* const scope = guest.begin_guest(options);
    EXPECT_LE(device.memory().used_bytes, 24 * kPage) << "the host was between steps";
    SUCCEEDS(sh_scope_end(scope));
    SUCCEEDS(host->step(forward(16)));
    EXPECT_EQ(host->stats().held_bytes, 64 * kPage);
}

TEST(Guest, needs_something_to_be_let_in_for) {
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 4, "host");
    Model guest(device, {});
    sh_scope* scope = nullptr;
    EXPECT_REFUSED(sh_guest_begin(guest.runtime(), nullptr, &scope), SH_ERROR_INVALID_STATE,
                   "register its blocks first");
    EXPECT_EQ(device.memory().guest_bytes, 0u);
    // Blocks that are registered later get no more memory than the terms say.
    sh_guest_options options = terms(0, 8 * kPage);
    SUCCEEDS(sh_guest_begin(guest.runtime(), &options, &scope));
    SUCCEEDS(guest.add({kBlock}));
    EXPECT_REFUSED(guest.use(0), SH_ERROR_BUDGET, "let in as a guest with 0 bytes");
    EXPECT_NE(why().find("registered before"), std::string::npos) << why();
    SUCCEEDS(sh_scope_end(scope));
    Model second(device, {});
    options = terms(8 * kPage);
    SUCCEEDS(sh_guest_begin(second.runtime(), &options, &scope));
    SUCCEEDS(second.add({kBlock}));
    SUCCEEDS(second.use(0));
    SUCCEEDS(sh_scope_end(scope));
}

TEST(Guest, that_has_outgrown_its_memory_is_named_by_a_resume) {
    if (devices_without_pages()) GTEST_SKIP() << "memory without pages cannot be paused";
    TestDevice device({.budget_bytes = 64 * kPage});
    auto host = make(device, 4, "host");
    Model guest(device, equal_blocks(1, 2 * kPage), {.name = "visitor"});
    sh_guest_options options = terms(2 * kPage);
    sh_scope* const scope = guest.begin_guest(options);
    SUCCEEDS(guest.use(0));
    SUCCEEDS(sh_pause(device.get(), nullptr, nullptr));
    SUCCEEDS(guest.add({6 * kPage}));
    ASSERT_EQ(sh_resume(device.get(), nullptr, nullptr), SH_ERROR_BUDGET) << why();
    const std::string parts[] = {"\"runtime:visitor\" cannot be resumed, so none of this call is", "it needs ",
                                 "let in as a guest with ", "end that scope and begin it with more bytes"};
    for (const std::string& part : parts) EXPECT_NE(why().find(part), std::string::npos) << why();
    SUCCEEDS(sh_scope_end(scope));
    SUCCEEDS(sh_resume(device.get(), nullptr, nullptr));
    SUCCEEDS(guest.use(1));
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
