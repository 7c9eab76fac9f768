// Record: one recording of an event in a stream, and the pool that they come from, so that a steady state
// allocates nothing.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace stagehand::host {

class RecordPool;

// Counted: the event holds one reference, and so does every command that mentions it. It outlives the event.
class Record {
public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    void wait();
    // By the stream, when everything before it has finished.
    void complete(uint64_t model_ns);
    // When it happened, in model time. Only once done.
    uint64_t model_ns() const { return model_ns_; }

private:
    friend class RecordPool;
    friend class RecordPointer;
    std::atomic<uint32_t> references_{0};
    std::atomic<bool> done_{false};
    uint64_t model_ns_ = 0;
    RecordPool* pool_ = nullptr;
    std::mutex mutex_;
    std::condition_variable completed_;
};

// Outlives every record that it gave out.
class RecordPool {
public:
    // Not done, with one reference, which is the caller's.
    Record* take();

private:
    friend class RecordPointer;
    void give(Record* record);

    std::mutex mutex_;
    std::deque<Record> records_;
    std::vector<Record*> idle_;
};

// A reference to a record, or to none.
class RecordPointer {
public:
    RecordPointer() = default;
    explicit RecordPointer(Record* taken) : record_(taken) {}
    RecordPointer(const RecordPointer& other) : record_(other.record_) {
        if (record_) record_->references_.fetch_add(1, std::memory_order_relaxed);
    }
    RecordPointer(RecordPointer&& other) noexcept : record_(other.record_) { other.record_ = nullptr; }
    RecordPointer& operator=(RecordPointer other) noexcept {
        std::swap(record_, other.record_);
        return *this;
    }
    ~RecordPointer() {
        if (record_ && record_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
            record_->pool_->give(record_);
    }

    explicit operator bool() const { return record_ != nullptr; }
    Record* operator->() const { return record_; }

private:
    Record* record_ = nullptr;
};

}  // namespace stagehand::host
