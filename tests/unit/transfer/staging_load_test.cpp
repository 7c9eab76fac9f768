#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <thread>

#include "../count_allocations.h"
#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

using test::Latch;
using test::random_bytes;
using test::TestLoad;

// Returns thread ids, because the number of threads says little. The kernel's io_uring workers from reads of other
// tests are listed until they have been idle for seconds. A joined thread is listed for a moment longer.
std::set<std::string> threads_of_this_process() {
    std::set<std::string> ids;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
        ids.insert(entry.path().filename());
    return ids;
}

std::set<std::string> threads_that_are_not_in(const std::set<std::string>& before) {
    std::set<std::string> added;
    for (const std::string& id : threads_of_this_process())
        if (!before.count(id)) added.insert(id);
    return added;
}

class StagingLoad : public test::StagingTest {};

TEST_F(StagingLoad, StartsNothingUntilTheFirstLoad) {
    const auto before = threads_of_this_process();
    make_engine(3);
    make_memory(1000);
    EXPECT_EQ(engine_->bytes(), 0u);
    EXPECT_EQ(engine_->threads(), 3u);
    EXPECT_EQ(engine_->piece_bytes(), kPiece);
    EXPECT_EQ(fake_.registrations(), 0u);
    EXPECT_TRUE(threads_that_are_not_in(before).empty());

    const auto bytes = random_bytes(1000, 1);
    TestLoad load;
    aim(load, memory_source(bytes), 0);
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    EXPECT_EQ(threads_that_are_not_in(before).size(), 3u);
    EXPECT_GE(engine_->bytes(), 2 * kPiece);
    EXPECT_EQ(engine_->pinned_bytes(), engine_->bytes());
    synchronize();
    EXPECT_TRUE(holds(0, bytes));

    engine_.reset();
    EXPECT_EQ(fake_.registrations(), 0u);
    EXPECT_EQ(fake_.events(), 0u);
    while (!threads_that_are_not_in(before).empty()) std::this_thread::yield();  // as long as the test may take
}

// Loads that cannot go on at once

TEST_F(StagingLoad, ALoadLargerThanTheRingWaitsForTheDevice) {
    make_engine(2, 3 * (kPiece + 4096));
    const auto bytes = random_bytes(20 * kPiece, 1);
    make_memory(bytes.size());
    fake_.close_gate();
    TestLoad load;
    aim(load, memory_source(bytes), 0);
    ASSERT_TRUE(engine_->submit(load.load).ok());
    while (fake_.calls("event_record") < 3) std::this_thread::yield();
    EXPECT_EQ(load.outcome.times(), 0);
    EXPECT_EQ(fake_.calls("copy_to_device"), 3);
    EXPECT_FALSE(engine_->cancel(load.load));  // between pieces
    EXPECT_EQ(load.outcome.wait().code(), SH_ERROR_CANCELLED);
    fake_.open_gate();
    synchronize();
    EXPECT_EQ(load.load.issued_pieces, 3u);
    EXPECT_TRUE(holds(0, {bytes.begin(), bytes.begin() + 3 * kPiece}));
    EXPECT_EQ(memory_[3 * kPiece], kUntouched);
    load.outcome.reset();
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    synchronize();
    EXPECT_TRUE(holds(0, bytes));
}

TEST_F(StagingLoad, PiecesAreIssuedInOrderSoThatNoneIsHeldUpByLaterWaits) {
    make_engine(2, 8 * (kPiece + 4096));
    const auto bytes = random_bytes(kPiece, 1);
    make_memory(10 * kPiece);
    Latch latch, blocked;
    TestLoad slow, other;
    aim(slow, fill_source(test::fill_after_latch, &latch, kPiece), 0);
    const Source& quick = memory_source(bytes);
    slow.load.extents.push_back({&quick, 0, address(kPiece), kPiece, 0, 1});
    slow.load.waits = {event_after(down_, blocked)};
    ASSERT_TRUE(engine_->submit(slow.load).ok());
    latch.wait_for_waiters(1);
    aim(other, quick, 5 * kPiece);
    other.load.deadline_ns = 1;  // after the second piece
    ASSERT_TRUE(engine_->submit(other.load).ok());
    EXPECT_TRUE(other.outcome.wait().ok());
    EXPECT_EQ(fake_.calls("stream_wait_event"), 0);
    latch.open();
    EXPECT_TRUE(slow.outcome.wait().ok());
    fake_.wait_for_copies(2);  // the first piece, and the other load: neither is behind the wait
    blocked.open();
    synchronize();
    EXPECT_TRUE(holds(0, std::vector<char>(kPiece, 1)));
    EXPECT_TRUE(holds(kPiece, bytes));
}

TEST_F(StagingLoad, ASlowReaderDoesNotKeepTheRingFromOthers) {
    make_engine(4, 6 * (kPiece + 4096));
    const auto bytes = random_bytes(30 * kPiece, 1);
    make_memory(bytes.size() + 40 * kPiece);
    Latch latch;
    TestLoad slow, other;
    aim(slow, fill_source(test::fill_after_latch, &latch, kPiece), 0);
    const Source& rest = memory_source(bytes);
    slow.load.extents.push_back({&rest, 0, address(kPiece), bytes.size(), 0, 0});
    ASSERT_TRUE(engine_->submit(slow.load).ok());
    latch.wait_for_waiters(1);
    aim(other, memory_source(bytes), 35 * kPiece);
    ASSERT_TRUE(engine_->submit(other.load).ok());
    EXPECT_TRUE(other.outcome.wait().ok());
    EXPECT_EQ(slow.outcome.times(), 0);
    latch.open();
    EXPECT_TRUE(slow.outcome.wait().ok());
    synchronize();
    EXPECT_TRUE(holds(kPiece, bytes));
    EXPECT_TRUE(holds(35 * kPiece, bytes));
}

TEST_F(StagingLoad, AFailingSourceEndsItsLoadOnly) {
    struct Counter {
        std::atomic<int> calls = 0;
        static int32_t fail(void*, uint64_t offset, uint64_t, void* of) {
            static_cast<Counter*>(of)->calls++;
            return offset >= 5 * kPiece ? 9 : 0;
        }
    } counter;
    make_engine(2);
    const auto bytes = random_bytes(10 * kPiece, 1);
    make_memory(1000 * kPiece);
    TestLoad bad, good;
    aim(bad, fill_source(Counter::fail, &counter, 900 * kPiece), 10 * kPiece);
    aim(good, memory_source(bytes), 0);
    ASSERT_TRUE(engine_->submit(bad.load).ok());
    ASSERT_TRUE(engine_->submit(good.load).ok());
    const Status status = bad.outcome.wait();
    EXPECT_EQ(status.code(), SH_ERROR_CALLBACK);
    EXPECT_NE(std::string(status.text()).find("returned 9"), std::string::npos) << status.text();
    EXPECT_TRUE(good.outcome.wait().ok());
    EXPECT_LE(counter.calls, 5 + 2 + 1);  // no other piece has begun
    EXPECT_LE(bad.load.issued_pieces, 5u);
    synchronize();
    EXPECT_TRUE(holds(0, bytes));
    EXPECT_EQ(memory_[16 * kPiece], kUntouched);
    EXPECT_EQ(bad.outcome.times(), 1);
}

// Ends

TEST_F(StagingLoad, IsDestroyedInAChildWithoutItsWorkers) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a program with threads";
#endif
    make_engine(2);
    make_memory(8 * kPiece);
    const auto bytes = random_bytes(8 * kPiece, 1);
    TestLoad load;
    aim(load, memory_source(bytes), 0);
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    synchronize();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(20);
        engine_.reset();
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Nothing is allocated after the first loads. The device does nothing, so it allocates nothing either.
TEST_F(StagingLoad, ASteadyStateAllocatesNothing) {
    static sh_backend table;
    table = device_->table();
    table.stream_wait_event = [](sh_backend_device*, sh_stream, sh_backend_event) { return sh_status(SH_OK); };
    table.event_record = [](sh_backend_device*, sh_backend_event, sh_stream) { return sh_status(SH_OK); };
    table.event_query = [](sh_backend_device*, sh_backend_event, uint32_t* done) {
        return *done = 1, sh_status(SH_OK);
    };
    table.copy_to_device = [](sh_backend_device*, sh_stream, uint64_t, const void*, uint64_t) {
        return sh_status(SH_OK);
    };
    table.copy_to_host = [](sh_backend_device*, sh_stream, void*, uint64_t, uint64_t) { return sh_status(SH_OK); };
    table.host_is_pinned = [](sh_backend_device*, const void*, uint64_t, uint32_t* pinned) {
        return *pinned = 0, sh_status(SH_OK);
    };
    BackendDevice quiet(table, reinterpret_cast<sh_backend_device*>(&fake_), device_->info());

    const auto bytes = random_bytes(2 << 20, 1);
    make_memory(bytes.size());
    std::vector<char> host(2 << 20);
    {
        StagingEngine engine(quiet, {.bytes = 8 << 16, .threads = 2});
        std::array<TestLoad, 8> loads;
        std::array<test::TestStore, 2> stores;
        for (TestLoad& load : loads) {
            aim(load, memory_source(bytes), 0);
            load.load.waits = {1, 2, 3};
            load.load.extents[0].waits.count = 3;
        }
        for (size_t i = 0; i < 2; i++) stores[i].store.extents = {{host.data() + (i << 20), address(0), 1 << 20}};
        const auto round = [&] {
            for (TestLoad& load : loads) EXPECT_TRUE(engine.submit(load.load).ok());
            for (test::TestStore& store : stores) EXPECT_TRUE(engine.submit(store.store).ok());
            for (TestLoad& load : loads) EXPECT_TRUE(load.outcome.wait().ok());
            for (test::TestStore& store : stores) EXPECT_TRUE(store.outcome.wait().ok());
            for (TestLoad& load : loads) load.outcome.reset();
            for (test::TestStore& store : stores) store.outcome.reset();
        };
        for (int i = 0; i < 50; i++) round();  // every slot and every worker has had its turn
        stagehand::test::allocations = 0;
        stagehand::test::count_allocations = true;
        for (int i = 0; i < 50; i++) round();
        stagehand::test::count_allocations = false;
        EXPECT_EQ(stagehand::test::allocations, 0u);
    }
}

}  // namespace
}  // namespace stagehand::transfer
