#include <algorithm>
#include <chrono>
#include <thread>

#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

using test::Latch;
using test::random_bytes;
using test::TestLoad;
using test::TestStore;

class StagingStore : public test::StagingTest {
protected:
    // Fills the device with random bytes.
    void fill_device(uint64_t bytes, uint32_t seed) { memory_ = random_bytes(bytes, seed); }
    void aim_store(TestStore& store, uint64_t offset, void* host, uint64_t bytes) {
        store.store.stream = down_;
        store.store.extents.push_back({host, address(offset), bytes});
    }
    // Submits a store that takes all slots that stores may have, until the latch opens.
    void take_all_slots(TestStore& store, std::vector<char>& host, Latch& latch) {
        aim_store(store, 0, host.data(), host.size());
        store.store.deadline_ns = 10;
        sh_stream compute = 0;
        ASSERT_TRUE(device_->stream_create(&compute).ok());
        store.store.waits = {event_after(compute, latch)};
        ASSERT_TRUE(engine_->submit(store.store).ok());
        while (fake_.calls("copy_to_host") < 4) std::this_thread::yield();
    }
    // Waits for the end of a store, which another one must not hold up.
    void expect_to_end_alone(TestStore& store, TestStore& blocked) {
        for (int k = 0; k < 2000 && store.outcome.times() == 0; k++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        EXPECT_EQ(store.outcome.times(), 1);
        EXPECT_EQ(blocked.outcome.times(), 0);
    }
};

TEST_F(StagingStore, NeighboursAreCopiedAtOnceEvenToDifferentPlaces) {
    make_engine(2);
    fill_device(kPiece, 1);
    std::vector<char> host(kPiece);
    TestStore store;
    for (uint64_t i = 0; i < 64; i++) aim_store(store, i * 1024, host.data() + (63 - i) * 1024, 1024);
    ASSERT_TRUE(engine_->submit(store.store).ok());
    EXPECT_TRUE(store.outcome.wait().ok());
    EXPECT_EQ(fake_.calls("copy_to_host"), 1);
    for (uint64_t i = 0; i < 64; i++)
        EXPECT_EQ(std::memcmp(host.data() + (63 - i) * 1024, memory_.data() + i * 1024, 1024), 0);
}

TEST_F(StagingStore, BlockedStoresLeaveSlotsForLoads) {
    make_engine(1, 6 * (kPiece + 4096));
    const auto bytes = random_bytes(20 * kPiece, 1);
    make_memory(100 * kPiece);
    Latch latch;
    TestStore store;
    std::vector<char> host(30 * kPiece);
    aim_store(store, 50 * kPiece, host.data(), host.size());
    sh_stream compute = 0;
    ASSERT_TRUE(device_->stream_create(&compute).ok());
    store.store.waits = {event_after(compute, latch)};
    ASSERT_TRUE(engine_->submit(store.store).ok());
    while (fake_.calls("copy_to_host") < 4) std::this_thread::yield();
    TestLoad load;
    aim(load, memory_source(bytes), 0);
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    ASSERT_TRUE(device_->stream_synchronize(up_).ok());
    EXPECT_TRUE(holds(0, bytes));
    EXPECT_EQ(store.outcome.times(), 0);
    latch.open();
    EXPECT_TRUE(store.outcome.wait().ok());
    EXPECT_EQ(std::memcmp(host.data(), memory_.data() + 50 * kPiece, host.size()), 0);
}

TEST_F(StagingStore, NothingToCopyNeedsNoSlot) {
    make_engine(1, 6 * (kPiece + 4096));
    make_memory(30 * kPiece);
    Latch latch;
    TestStore blocked, empty;
    std::vector<char> host(30 * kPiece);
    ASSERT_NO_FATAL_FAILURE(take_all_slots(blocked, host, latch));
    for (int i = 0; i < 3; i++) aim_store(empty, 0, host.data(), 0);
    empty.store.deadline_ns = 5;
    ASSERT_TRUE(engine_->submit(empty.store).ok());
    expect_to_end_alone(empty, blocked);
    latch.open();
    EXPECT_TRUE(empty.outcome.wait().ok());
    EXPECT_TRUE(blocked.outcome.wait().ok());
}

TEST_F(StagingStore, StoresAndLoadsAreOrderedByDeadline) {
    make_engine(1);
    make_memory(1 << 20);
    Latch latch;
    TestLoad blocker, load;
    aim(blocker, fill_source(test::fill_after_latch, &latch, 10), 0);
    ASSERT_TRUE(engine_->submit(blocker.load).ok());
    latch.wait_for_waiters(1);
    const std::vector<char> bytes(10);
    aim(load, memory_source(bytes), 100);
    load.load.deadline_ns = 10;
    TestStore early, late;
    char host[20];
    aim_store(early, 200, host, 10);
    aim_store(late, 300, host + 10, 10);
    early.store.deadline_ns = 5;
    late.store.deadline_ns = 15;
    ASSERT_TRUE(engine_->submit(late.store).ok());
    ASSERT_TRUE(engine_->submit(load.load).ok());
    ASSERT_TRUE(engine_->submit(early.store).ok());
    static std::vector<int> order;  // of the one worker's calls
    order.clear();
    early.store.device_read = [](void*, StagedStore&) { order.push_back(1); };
    late.store.device_read = [](void*, StagedStore&) { order.push_back(3); };
    load.load.finished = [](void* context, StagedLoad&, const Status& status) {
        order.push_back(2);
        static_cast<TestLoad*>(context)->outcome.finish(status);
    };
    latch.open();
    for (TestStore* store : {&early, &late}) EXPECT_TRUE(store->outcome.wait().ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    EXPECT_TRUE(blocker.outcome.wait().ok());
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

}  // namespace
}  // namespace stagehand::transfer
