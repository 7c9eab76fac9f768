#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/handle_table.h"

namespace stagehand {
namespace {

using namespace std::chrono_literals;
using Table = HandleTable<int, 0x5>;

std::chrono::steady_clock::time_point in(std::chrono::milliseconds time) {
    return std::chrono::steady_clock::now() + time;
}

TEST(HandleVisit, ShowsWhatIsThereWithItsHandle) {
    Table table;
    EXPECT_EQ(table.for_each(in(0ms), [](void*, int&) { FAIL(); }), 0u);
    void* const first = table.insert(std::make_shared<int>(1));
    void* const second = table.insert(std::make_shared<int>(2));
    void* const third = table.insert(std::make_shared<int>(3));
    Table::Slot* const slot = table.lock(second);
    auto gone = table.remove(*slot);
    slot->mutex.unlock();

    std::map<void*, int> seen;
    EXPECT_EQ(table.for_each(in(1000ms), [&](void* handle, int& value) { seen[handle] = value; }), 0u);
    EXPECT_EQ(seen, (std::map<void*, int>{{first, 1}, {third, 3}}));
}

TEST(HandleVisit, LocksWhatItShows) {
    Table table;
    void* const handle = table.insert(std::make_shared<int>(1));
    table.for_each(in(1000ms), [&](void* shown, int&) {
        ASSERT_EQ(shown, handle);
        std::thread other([&] { EXPECT_EQ(table.for_each(in(20ms), [](void*, int&) { FAIL(); }), 1u); });
        other.join();
    });
    Table::Slot* const slot = table.lock(handle);
    ASSERT_NE(slot, nullptr);
    slot->mutex.unlock();
}

TEST(HandleVisit, PassesOverWhatIsInUseTooLong) {
    Table table;
    void* const busy = table.insert(std::make_shared<int>(1));
    table.insert(std::make_shared<int>(2));
    std::unique_lock<std::mutex> lock;
    ASSERT_NE(table.lock(busy, &lock), nullptr);
    int seen = 0;
    EXPECT_EQ(table.for_each(in(20ms), [&](void*, int& value) { seen += value; }), 1u);
    EXPECT_EQ(seen, 2);
}

TEST(HandleVisit, WaitsForWhatIsInUseForAMoment) {
    Table table;
    void* const busy = table.insert(std::make_shared<int>(1));
    std::unique_lock<std::mutex> lock;
    ASSERT_NE(table.lock(busy, &lock), nullptr);
    std::atomic<bool> begun{false};
    int seen = 0;
    std::thread visitor([&] {
        begun = true;
        EXPECT_EQ(table.for_each(in(60000ms), [&](void*, int& value) { seen += value; }), 0u);
    });
    while (!begun) std::this_thread::yield();
    std::this_thread::sleep_for(10ms);
    lock.unlock();
    visitor.join();
    EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace stagehand
