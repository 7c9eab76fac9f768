// sh_runtime_options.share_wait_ns: a model waits until other models have ended the steps in which they hold a part of
// its share.
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <optional>
#include <thread>

#include "engine.h"

namespace stagehand::test {
namespace {

RuntimeSettings options_that_wait(std::chrono::nanoseconds patience) {
    return {.share_wait_ns = static_cast<uint64_t>(patience.count())};
}

// The second model gets no memory while the first model is in a step. It waits for the time that its options say.
class ShareWait : public testing::Test {
protected:
    void begin(std::chrono::nanoseconds patience) {
        second_.emplace(device_, equal_blocks(10, 4 * kPage, Origin::pageable), options_that_wait(patience));
        SUCCEEDS(first_.schedule(forward(10)));
        SUCCEEDS(second_->schedule(forward(10)));
        SUCCEEDS(first_.step(forward(10)));
        first_.begin_step();
    }

    TestDevice device_{{.budget_bytes = 40 * kPage}};
    Model first_{device_, equal_blocks(10, 4 * kPage)};
    std::optional<Model> second_;
};

TEST_F(ShareWait, a_step_waits_until_others_have_ended_theirs) {
    begin(std::chrono::seconds(60));
    std::atomic<bool> ended{false};
    std::thread waits([&] {
        second_->begin_step();
        EXPECT_TRUE(ended) << "there was no memory for it";
        for (size_t i = 0; i < 10; i++) SUCCEEDS(second_->use(i));
        second_->end_step();
    });
    for (size_t i = 0; i < 10; i++) SUCCEEDS(first_.use(i));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended = true;
    first_.end_step();
    waits.join();
    EXPECT_LE(device_.memory().peak_bytes, 40 * kPage);
}

TEST_F(ShareWait, gives_up_in_time) {
    begin(std::chrono::milliseconds(30));
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(sh_step_begin(second_->runtime(), nullptr), SH_ERROR_BUSY);
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(30));
    first_.end_step();
    SUCCEEDS(second_->step(forward(10)));
}

// Threads of a server, each with its own model. The first model has taken the whole budget.
TEST(ShareWaits, nobody_is_turned_away) {
    constexpr size_t kModels = 5;
    TestDevice device({.budget_bytes = 24 * kPage});
    std::deque<Model> models;
    for (size_t i = 0; i < kModels; i++) {
        models.emplace_back(device, equal_blocks(6, 4 * kPage, i % 2 ? Origin::pinned : Origin::pageable),
                            options_that_wait(std::chrono::minutes(5)));
        SUCCEEDS(models.back().schedule(forward(6)));
    }
    SUCCEEDS(sh_step_begin(models[0].runtime(), nullptr));
    std::vector<std::thread> threads;
    for (size_t i = 1; i < kModels; i++)
        threads.emplace_back([&model = models[i]] {
            for (int k = 0; k < 12; k++) SUCCEEDS(model.step(forward(6)));
        });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    SUCCEEDS(sh_step_end(models[0].runtime()));
    for (int k = 0; k < 12; k++) SUCCEEDS(models[0].step(forward(6)));
    for (std::thread& thread : threads) thread.join();
    EXPECT_LE(device.memory().peak_bytes, 24 * kPage);
}

TEST_F(ShareWait, ends_with_the_runtime) {
    begin(std::chrono::hours(1));
    std::promise<void> begun;
    std::thread waits([&] {
        begun.set_value();
        EXPECT_EQ(sh_step_begin(second_->runtime(), nullptr), SH_ERROR_CANCELLED);
    });
    begun.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    second_->destroy();
    waits.join();
    first_.end_step();
}

}  // namespace
}  // namespace stagehand::test
