#include "transfer/staging/workers.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace stagehand::transfer {
namespace {

// A device may take long to accept a thread, and may refuse it.
TEST(Workers, AreThereOrRefusedWhenTheStartReturns) {
    std::atomic<int> begun = 0, working = 0;
    const auto begin = [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return begun++ == 0 ? Status(SH_ERROR_BACKEND, "refused") : Status();
    };
    const auto work = [&] { working++; };
    Workers workers;
    uint32_t able = 0;
    const Status some = workers.start(3, begin, work, &able);
    EXPECT_TRUE(some.ok()) << some.text();
    EXPECT_EQ(able, 2u);
    workers.join();
    EXPECT_EQ(working, 2);
    begun = 0;
    EXPECT_EQ(workers.start(1, begin, work, &able).code(), SH_ERROR_BACKEND);
    EXPECT_EQ(able, 0u);
    workers.join();
    EXPECT_EQ(working, 2);
}

}  // namespace
}  // namespace stagehand::transfer
