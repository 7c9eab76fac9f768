// Who uses something, of any number of threads at once.
#include "core/runtime/users.h"

#include <gtest/gtest.h>

#include <barrier>
#include <mutex>
#include <thread>
#include <vector>

namespace stagehand::core {
namespace {

constexpr int kThreads = 40;

TEST(Users, EveryThreadKnowsItsOwnUses) {
    Users users;
    std::mutex mutex;
    int known = 0, forgotten = 0;
    std::barrier all(kThreads);
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; i++)
        threads.emplace_back([&] {
            {
                const std::lock_guard lock(mutex);
                users.come();
            }
            all.arrive_and_wait();
            {
                const std::lock_guard lock(mutex);
                known += users.are_own();
            }
            all.arrive_and_wait();
            const std::lock_guard lock(mutex);
            users.go();
            forgotten += !users.are_own();
        });
    threads.clear();
    EXPECT_EQ(known, kThreads);
    EXPECT_EQ(forgotten, kThreads);
    EXPECT_EQ(users.count(), 0u);
}

TEST(Users, AnyThreadEndsAUse) {
    Users users;
    users.come();
    users.come();
    std::jthread([&] {
        users.go();
        EXPECT_FALSE(users.are_own());
    }).join();
    EXPECT_TRUE(users.are_own());
    EXPECT_EQ(users.count(), 1u);
    std::jthread([&] { users.go(); }).join();
    EXPECT_FALSE(users.are_own());
    EXPECT_EQ(users.count(), 0u);
}

}  // namespace
}  // namespace stagehand::core
