// sh_guest_options.wait_ns: a guest is let in when its memory is there, because other runtimes have ended the steps in
// which they hold the memory.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "several_models.h"

namespace stagehand::test {
namespace {

using std::chrono::milliseconds, std::chrono::minutes, std::chrono::nanoseconds;

sh_guest_options that_waits(nanoseconds patience, uint64_t workspace_bytes = 0) {
    sh_guest_options options = SH_GUEST_OPTIONS_INIT;
    options.workspace_bytes = workspace_bytes;
    options.wait_ns = static_cast<uint64_t>(patience.count());
    return options;
}

// The host holds the whole budget and is in a step.
class GuestWait : public testing::Test {
protected:
    void SetUp() override {
        SUCCEEDS(host_->step(forward(20)));
        ASSERT_EQ(host_->stats().held_bytes, 64 * kPage);
        host_->begin_step();
    }

    void end_step_of_host() {
        for (size_t i = 0; i < 20; i++) SUCCEEDS(host_->use(i));
        host_->end_step();
    }

    TestDevice device_{{.budget_bytes = 64 * kPage}};
    std::unique_ptr<Model> host_ = make(device_, 20, "host"), guest_ = make(device_, 6, "guest");
};

// The header says that a guest is let in at once, and that its step may be too early.
TEST_F(GuestWait, is_off_by_default) {
    sh_scope* const scope = guest_->begin_guest();
    EXPECT_EQ(sh_step_begin(guest_->runtime(), nullptr), SH_ERROR_BUSY);
    end_step_of_host();
    SUCCEEDS(guest_->step(forward(6)));
    SUCCEEDS(sh_scope_end(scope));
}

TEST_F(GuestWait, lets_it_in_when_its_memory_is_there) {
    const sh_guest_options options = that_waits(minutes(5), 8 * kPage);
    std::atomic<bool> ended{false};
    std::thread waits([&] {
        sh_scope* const scope = guest_->begin_guest(options);
        EXPECT_TRUE(ended) << "there was no memory for it";
        EXPECT_LE(device_.memory().used_bytes, 56 * kPage) << "its workspace is free";
        for (int k = 0; k < 3; k++) SUCCEEDS(guest_->step(forward(6)));
        EXPECT_EQ(guest_->stats().held_bytes, 24 * kPage);
        SUCCEEDS(sh_scope_end(scope));
    });
    for (size_t i = 0; i < 20; i++) SUCCEEDS(host_->use(i));
    std::this_thread::sleep_for(milliseconds(20));
    ended = true;
    host_->end_step();
    waits.join();
    SUCCEEDS(host_->step(forward(20)));
    EXPECT_LE(device_.memory().peak_bytes, 64 * kPage);
}

TEST_F(GuestWait, gives_up_in_time_and_claims_nothing) {
    const sh_guest_options options = that_waits(milliseconds(30));
    const auto began = std::chrono::steady_clock::now();
    sh_scope* scope = nullptr;
    EXPECT_EQ(sh_guest_begin(guest_->runtime(), &options, &scope), SH_ERROR_BUSY);
    EXPECT_GE(std::chrono::steady_clock::now() - began, milliseconds(30));
    for (const char* const part : {"\"guest\"", "\"host\" holds", "wait_ns"})
        EXPECT_NE(why().find(part), std::string::npos) << part << ": " << why();
    EXPECT_EQ(scope, nullptr);
    EXPECT_EQ(device_.memory().guest_bytes, 0u);
    EXPECT_EQ(guest_->stats().guest_bytes, 0u);
    end_step_of_host();
    SUCCEEDS(host_->step(forward(20)));
    EXPECT_EQ(host_->stats().held_bytes, 64 * kPage) << "nothing is claimed any more";
    SUCCEEDS(sh_guest_begin(guest_->runtime(), &options, &scope));
    SUCCEEDS(guest_->step(forward(6)));
    SUCCEEDS(sh_scope_end(scope));
}

// The runtime goes on with the memory that it had before.
TEST_F(GuestWait, that_was_in_vain_leaves_a_runtime_what_it_is) {
    end_step_of_host();
    for (int k = 0; k < 3; k++) SUCCEEDS(guest_->step(forward(6)));
    const uint64_t held = guest_->stats().held_bytes;
    EXPECT_GT(held, 0u);
    SUCCEEDS(host_->step(forward(20)));
    host_->begin_step();
    const sh_guest_options options = that_waits(milliseconds(5), 60 * kPage - 24 * kPage);
    sh_scope* scope = nullptr;
    EXPECT_EQ(sh_guest_begin(guest_->runtime(), &options, &scope), SH_ERROR_BUSY) << why();
    EXPECT_EQ(device_.memory().guest_bytes, 0u);
    SUCCEEDS(guest_->step(forward(6)));
    end_step_of_host();
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(host_->step(forward(20)));
        SUCCEEDS(guest_->step(forward(6)));
    }
    EXPECT_EQ(host_->stats().held_bytes + guest_->stats().held_bytes, 64 * kPage);
}

TEST_F(GuestWait, of_one_that_is_a_guest_already_leaves_it_one) {
    const sh_guest_options options = that_waits(milliseconds(5));
    sh_scope *first = nullptr, *second = nullptr;
    SUCCEEDS(sh_guest_begin(guest_->runtime(), nullptr, &first));
    EXPECT_EQ(sh_guest_begin(guest_->runtime(), &options, &second), SH_ERROR_BUSY);
    EXPECT_EQ(guest_->stats().guest_bytes, 24 * kPage);
    end_step_of_host();
    SUCCEEDS(sh_guest_begin(guest_->runtime(), &options, &second));
    SUCCEEDS(sh_scope_end(first));
    SUCCEEDS(guest_->step(forward(6)));
    EXPECT_EQ(guest_->stats().guest_bytes, 24 * kPage);
    SUCCEEDS(sh_scope_end(second));
    EXPECT_EQ(guest_->stats().held_bytes, 0u);
}

// Each runtime holds memory that the other runtime was promised.
TEST(GuestWaits, two_that_wait_do_not_wait_for_each_other) {
    TestDevice device({.budget_bytes = 48 * kPage});
    auto host = make(device, 2, "host"), one = make(device, 12, "one"), two = make(device, 12, "two");
    for (int k = 0; k < 3; k++) {
        SUCCEEDS(one->step(forward(12)));
        SUCCEEDS(two->step(forward(12)));
    }
    EXPECT_EQ(one->stats().held_bytes + two->stats().held_bytes, 48 * kPage);
    std::vector<std::thread> threads;
    for (Model* const model : {one.get(), two.get()})
        threads.emplace_back([&, model] {
            sh_guest_options options = that_waits(minutes(5));
            options.bytes = 20 * kPage;
            sh_scope* const scope = model->begin_guest(options);
            SUCCEEDS(model->step(forward(12)));
            EXPECT_LE(model->stats().held_bytes, 20 * kPage);
            SUCCEEDS(sh_scope_end(scope));
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(device.memory().guest_bytes, 0u);
}

TEST_F(GuestWait, ends_with_the_runtime) {
    const sh_guest_options options = that_waits(std::chrono::hours(1));
    std::promise<void> begun;
    std::thread waits([&] {
        sh_scope* scope = nullptr;
        begun.set_value();
        EXPECT_EQ(sh_guest_begin(guest_->runtime(), &options, &scope), SH_ERROR_CANCELLED);
    });
    begun.get_future().wait();
    std::this_thread::sleep_for(milliseconds(20));
    guest_->destroy();
    waits.join();
    EXPECT_EQ(device_.memory().guest_bytes, 0u);
    end_step_of_host();
    SUCCEEDS(host_->step(forward(20)));
    EXPECT_EQ(host_->stats().held_bytes, 64 * kPage);
}

}  // namespace
}  // namespace stagehand::test
