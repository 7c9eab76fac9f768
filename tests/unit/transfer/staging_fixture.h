// Code that the tests of the staging engine share: a fake device with streams and memory, and loads and stores that a
// test can wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fake_backend.h"
#include "temporary_file.h"
#include "transfer/staging/staging_engine.h"

namespace stagehand::transfer {

constexpr uint64_t kPiece = 64 << 10;  // of the fake device

namespace test {

// Threads wait for a latch until it is opened.
class Latch {
public:
    void open() {
        std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    void wait() {
        std::unique_lock lock(mutex_);
        waiting_++;
        changed_.notify_all();
        changed_.wait(lock, [&] { return open_; });
    }
    // Returns when `count` threads wait for the latch.
    void wait_for_waiters(int count) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return waiting_ >= count; });
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    int waiting_ = 0;
};

inline int32_t fill_after_latch(void* buffer, uint64_t, uint64_t bytes, void* latch) {
    static_cast<Latch*>(latch)->wait();
    std::memset(buffer, 1, bytes);
    return 0;
}

// The outcome of a load or a store.
class Outcome {
public:
    void finish(const Status& status) {
        std::lock_guard lock(mutex_);
        status_ = status;
        times_++;
        changed_.notify_all();
    }
    Status wait() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return times_ > 0; });
        return status_;
    }
    int times() {
        std::lock_guard lock(mutex_);
        return times_;
    }
    void reset() {
        std::lock_guard lock(mutex_);
        times_ = 0;
        status_ = Status();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    Status status_;
    int times_ = 0;
};

struct TestLoad {
    StagedLoad load;
    Outcome outcome;
    std::vector<TestLoad*>* order = nullptr;  // with one worker: in which order loads finish

    TestLoad() {
        load.context = this;
        load.finished = [](void* context, StagedLoad& done, const Status& status) {
            TestLoad& self = *static_cast<TestLoad*>(context);
            EXPECT_EQ(&done, &self.load);
            if (self.order) self.order->push_back(&self);
            self.outcome.finish(status);
        };
    }
    TestLoad(const TestLoad&) = delete;
};

struct TestStore {
    StagedStore store;
    Outcome outcome;
    std::atomic<int> reads = 0;

    TestStore() {
        store.context = this;
        store.device_read = [](void* context, StagedStore&) {
            TestStore& self = *static_cast<TestStore*>(context);
            EXPECT_EQ(self.outcome.times(), 0);
            self.reads++;
        };
        store.finished = [](void* context, StagedStore& done, const Status& status) {
            TestStore& self = *static_cast<TestStore*>(context);
            EXPECT_EQ(&done, &self.store);
            self.outcome.finish(status);
        };
    }
    TestStore(const TestStore&) = delete;
};

class StagingTest : public testing::Test {
protected:
    static constexpr char kUntouched = 0x5a;

    void SetUp() override {
        ASSERT_TRUE(device_->stream_create(&up_).ok());
        ASSERT_TRUE(device_->stream_create(&down_).ok());
    }
    void make_engine(uint32_t threads, uint64_t bytes = 0) {
        StagingOptions options;
        options.threads = threads;
        options.bytes = bytes;
        engine_ = std::make_unique<StagingEngine>(*device_, options);
    }
    void make_memory(uint64_t bytes) { memory_.assign(bytes, kUntouched); }
    uint64_t address(uint64_t offset) { return reinterpret_cast<uint64_t>(memory_.data()) + offset; }

    Source& memory_source(const std::vector<char>& bytes) {
        Source& source = sources_.emplace_back();
        source.kind = SH_SOURCE_POINTER;
        source.pointer = const_cast<char*>(bytes.data());
        source.bytes = bytes.size();
        return source;
    }
    Source& fill_source(sh_fill_fn fill, void* user_data, uint64_t bytes) {
        Source& source = sources_.emplace_back();
        source.kind = SH_SOURCE_FILL;
        source.fill = fill;
        source.user_data = user_data;
        source.bytes = bytes;
        return source;
    }
    // Makes a load of a whole source to one place.
    void aim(TestLoad& load, const Source& source, uint64_t offset) {
        load.load.stream = up_;
        load.load.extents = {{&source, 0, address(offset), source.bytes, 0, 0}};
    }
    sh_backend_event make_event() {
        sh_backend_event event = 0;
        EXPECT_TRUE(device_->event_create(false, &event).ok());
        return event;
    }
    // Returns an event that is done when the latch is open.
    sh_backend_event event_after(sh_stream stream, Latch& latch) {
        const sh_backend_event event = make_event();
        EXPECT_TRUE(device_
                        ->stream_launch(
                            stream, [](void* of) { static_cast<Latch*>(of)->wait(); }, &latch, 0)
                        .ok());
        EXPECT_TRUE(device_->event_record(event, stream).ok());
        return event;
    }
    void synchronize() {
        ASSERT_TRUE(device_->stream_synchronize(up_).ok());
        ASSERT_TRUE(device_->stream_synchronize(down_).ok());
    }
    bool holds(uint64_t offset, const std::vector<char>& bytes) {
        return std::memcmp(memory_.data() + offset, bytes.data(), bytes.size()) == 0;
    }

    FakeBackend fake_;
    std::unique_ptr<BackendDevice> device_ = fake_.open();
    sh_stream up_ = 0, down_ = 0;
    std::vector<char> memory_;  // of the device
    std::list<Source> sources_;
    std::unique_ptr<StagingEngine> engine_;
};

}  // namespace test
}  // namespace stagehand::transfer
