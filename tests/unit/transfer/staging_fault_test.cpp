// Every call of the device fails once, and for ever, at every place. Nothing hangs, nothing leaks, and no byte is wrong
// without an error.
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include "staging_fixture.h"

namespace stagehand::transfer {
namespace {

using test::random_bytes;
using test::TestLoad;
using test::TestStore;

class StagingFault : public test::StagingTest {
protected:
    // Runs two loads behind a wait, and a store, through a ring of 3 slots. Returns true if the run met the fault.
    bool run(int64_t fail_at, bool for_ever) {
        SCOPED_TRACE("call " + std::to_string(fail_at) + (for_ever ? " and all after it" : ""));
        make_memory(64 * kPiece);
        std::memcpy(memory_.data() + 40 * kPiece, stored_.data(), stored_.size());
        const sh_backend_event wait = make_event(), read = make_event();
        EXPECT_TRUE(device_->event_record(wait, down_).ok());
        EXPECT_TRUE(device_->host_register(pinned_.data(), pinned_.size()).ok());
        const size_t events = fake_.events();
        fake_.fail_call(fail_at, for_ever);
        make_engine(2, 3 * (kPiece + 4096));

        std::vector<char> host(6 * kPiece, kUntouched);
        TestLoad loads[2];
        TestStore store;
        store.store.stream = down_;
        store.store.waits = {wait};
        store.store.read = read;
        store.store.extents = {{host.data(), address(40 * kPiece), host.size()},
                               {pinned_.data(), address(46 * kPiece), pinned_.size()}};
        bool submitted[3];
        for (int i = 0; i < 2; i++) {
            aim(loads[i], memory_source(bytes_), static_cast<uint64_t>(i) * 20 * kPiece);
            loads[i].load.waits = {wait};
            loads[i].load.extents[0].waits.count = 1;
            submitted[i] = engine_->submit(loads[i].load).ok();
        }
        submitted[2] = engine_->submit(store.store).ok();
        const bool load_ok[2] = {submitted[0] && loads[0].outcome.wait().ok(),
                                 submitted[1] && loads[1].outcome.wait().ok()};
        const bool store_ok = submitted[2] && store.outcome.wait().ok();
        const bool met = fake_.has_failed();
        // The engine uses the slots again when the device answers.
        fake_.fail_call(0);
        synchronize();
        for (int i = 0; i < 2; i++) {
            EXPECT_EQ(loads[i].outcome.times(), submitted[i] ? 1 : 0);
            EXPECT_TRUE(!load_ok[i] || holds(static_cast<uint64_t>(i) * 20 * kPiece, bytes_)) << "load " << i;
        }
        EXPECT_EQ(store.outcome.times(), submitted[2] ? 1 : 0);
        if (store_ok) {
            EXPECT_TRUE(std::memcmp(host.data(), stored_.data(), host.size()) == 0);
            EXPECT_TRUE(std::memcmp(pinned_.data(), stored_.data() + host.size(), pinned_.size()) == 0);
        }
        if (!for_ever) {  // the engine goes on as if no call had failed
            make_memory(64 * kPiece);
            TestLoad again;
            aim(again, memory_source(bytes_), 0);
            EXPECT_TRUE(engine_->submit(again.load).ok());
            EXPECT_TRUE(again.outcome.wait().ok());
            synchronize();
            EXPECT_TRUE(holds(0, bytes_));
        }
        engine_.reset();
        EXPECT_TRUE(device_->host_unregister(pinned_.data()).ok());
        if (!for_ever) {  // memory that a device refuses to take back cannot be freed
            EXPECT_EQ(fake_.events(), events);
            EXPECT_EQ(fake_.registrations(), 0u);
        }
        return met;
    }

    const std::vector<char> bytes_ = random_bytes(8 * kPiece, 1);
    const std::vector<char> stored_ = random_bytes(8 * kPiece, 2);
    std::vector<char> pinned_ = std::vector<char>(2 * kPiece);
};

TEST_F(StagingFault, EveryCallFailsOnce) {
    // The number of calls depends on how often the engine asks the device what has finished.
    int missed = 0;
    for (int64_t n = 1; missed < 10; n++) missed = run(n, false) ? 0 : missed + 1;
}

TEST_F(StagingFault, TheDeviceFailsForEver) {
    int missed = 0;
    for (int64_t n = 1; missed < 10; n++) missed = run(n, true) ? 0 : missed + 1;
}

TEST_F(StagingFault, EachKindOfCallFails) {
    for (const char* name : {"event_query", "event_record", "event_synchronize", "copy_to_device", "copy_to_host",
                             "stream_wait_event", "host_is_pinned", "host_register", "thread_begin", "event_create"}) {
        for (int64_t n = 1; n <= 8; n++) {
            SCOPED_TRACE(std::string(name) + " " + std::to_string(n));
            make_memory(30 * kPiece);
            fake_.fail_call(n, false, name);
            make_engine(2, 3 * (kPiece + 4096));
            TestLoad load;
            aim(load, memory_source(bytes_), 0);
            const bool submitted = engine_->submit(load.load).ok();
            if (submitted && load.outcome.wait().ok()) {
                synchronize();
                EXPECT_TRUE(holds(0, bytes_));
            }
            fake_.fail_call(0);
            engine_.reset();
            EXPECT_EQ(fake_.events(), 0u);
            EXPECT_EQ(fake_.registrations(), 0u);
        }
    }
}

TEST_F(StagingFault, WhenTheDeviceDoesNotAnswerAllEndsWithThatErrorUntilItDoes) {
    make_engine(2, 3 * (kPiece + 4096));
    make_memory(64 * kPiece);
    fake_.fail_call(1, true, "event_query");
    TestLoad load;
    aim(load, memory_source(bytes_), 0);
    // The engine waits instead if only queries fail.
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    fake_.fail_call(0);
    // The engine loses slots in flight, one after the other, if waits fail too.
    std::vector<char> host(20 * kPiece, kUntouched);
    TestStore store;
    store.store.stream = down_;
    store.store.extents = {{host.data(), address(0), host.size()}};
    TestLoad other;
    aim(other, memory_source(bytes_), 20 * kPiece);
    synchronize();
    fake_.close_gate();
    const int64_t recorded = fake_.calls("event_record");
    ASSERT_TRUE(engine_->submit(other.load).ok());
    while (fake_.calls("event_record") < recorded + 3) std::this_thread::yield();
    fake_.fail_call(1, true, "event_");
    EXPECT_EQ(other.outcome.wait().code(), SH_ERROR_BACKEND);
    load.outcome.reset();
    ASSERT_TRUE(engine_->submit(store.store).ok());
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_EQ(store.outcome.wait().code(), SH_ERROR_BACKEND);
    EXPECT_EQ(load.outcome.wait().code(), SH_ERROR_BACKEND);
    // The slots are taken up again once it answers.
    fake_.fail_call(0);
    fake_.open_gate();
    load.outcome.reset();
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());
    synchronize();
    EXPECT_TRUE(holds(0, bytes_));
}

// A store to pinned memory needs no slot. The engine waits for its copy if it cannot ask whether the copy has ended.
TEST_F(StagingFault, AStoreToPinnedMemoryIsWaitedForWhereQueriesFail) {
    make_engine(2);
    memory_ = random_bytes(2 * kPiece, 5);
    ASSERT_TRUE(device_->host_register(pinned_.data(), pinned_.size()).ok());
    for (const char* failing : {"event_query", "event_"}) {
        std::fill(pinned_.begin(), pinned_.end(), kUntouched);
        TestStore store;
        store.store.stream = down_;
        store.store.extents = {{pinned_.data(), address(0), pinned_.size()}};
        test::Latch latch;
        const sh_backend_event wait = event_after(down_, latch);
        store.store.waits = {wait};
        const int64_t recorded = fake_.calls("event_record");
        ASSERT_TRUE(engine_->submit(store.store).ok());
        while (fake_.calls("event_record") == recorded) std::this_thread::yield();
        fake_.fail_call(1, true, failing);
        latch.open();
        const sh_status expected = failing == std::string("event_query") ? SH_OK : SH_ERROR_BACKEND;
        EXPECT_EQ(store.outcome.wait().code(), expected) << failing;
        if (expected == SH_OK) {
            EXPECT_EQ(pinned_, memory_);
        }
        fake_.fail_call(0);
        synchronize();
    }
    engine_.reset();
    EXPECT_TRUE(device_->host_unregister(pinned_.data()).ok());
}

// A copy was issued, but its event could not be recorded. The slot must not be used again until the copy has finished.
TEST_F(StagingFault, ASlotWithoutAnEventIsNotUsedUntilItsStreamIsDone) {
    make_engine(2, 3 * (kPiece + 4096));
    make_memory(64 * kPiece);
    const auto piece = random_bytes(kPiece, 3);
    TestLoad first, load;
    aim(first, memory_source(piece), 0);  // starts the engine
    ASSERT_TRUE(engine_->submit(first.load).ok());
    ASSERT_TRUE(first.outcome.wait().ok());
    test::Latch hold_up, hold_down;
    const auto wait = [](void* of) { static_cast<test::Latch*>(of)->wait(); };
    ASSERT_TRUE(device_->stream_launch(up_, wait, &hold_up, 0).ok());
    ASSERT_TRUE(device_->stream_launch(down_, wait, &hold_down, 0).ok());
    std::vector<char> host(kPiece);
    TestStore store;
    store.store.stream = down_;
    store.store.extents = {{host.data(), address(10 * kPiece), kPiece}};
    const int64_t synchronized = fake_.calls("stream_synchronize");
    fake_.fail_call(1, false, "event_record");
    ASSERT_TRUE(engine_->submit(store.store).ok());
    while (!fake_.has_failed()) std::this_thread::yield();
    aim(load, memory_source(piece), 20 * kPiece);
    ASSERT_TRUE(engine_->submit(load.load).ok());
    EXPECT_TRUE(load.outcome.wait().ok());  // issued, and held up
    hold_down.open();
    fake_.wait_for_copies(2);  // the second copy is the late one from the device into the slot
    hold_up.open();
    EXPECT_EQ(store.outcome.wait().code(), SH_ERROR_BACKEND);
    EXPECT_EQ(fake_.calls("stream_synchronize"), synchronized + 1);
    synchronize();
    EXPECT_TRUE(holds(20 * kPiece, piece));
}

TEST_F(StagingFault, AnEngineIsDestroyedInAChildWithoutItsWorkers) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer does not follow a fork of a program with threads";
#endif
    make_engine(2);
    make_memory(64 * kPiece);
    TestLoad load;
    aim(load, memory_source(bytes_), 0);
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

}  // namespace
}  // namespace stagehand::transfer
