// Record: one recording of an event on a stream. RecordPool: keeps the records, so that a steady state allocates
// nothing.
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

// Reference-counted. The event holds one reference, and so does every command that refers to the record. A record
// may outlive its event.
class Record {
public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    void wait();
    // Called by the stream when all commands before it have finished.
    void complete(uint64_t model_ns);
    // The time of the recording in model time. Valid once done() is true.
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

// Must outlive every record that it gave out.
class RecordPool {
public:
    // Returns a record that is not done. Its one reference belongs to the caller.
    Record* take();

private:
    friend class RecordPointer;
    void give(Record* record);

    std::mutex mutex_;
    std::deque<Record> records_;
    std::vector<Record*> idle_;
};

// A reference to a record, or null.
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
        if (record_ && record_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) record_->pool_->give(record_);
    }

    explicit operator bool() const { return record_ != nullptr; }
    Record* operator->() const { return record_; }

private:
    Record* record_ = nullptr;
};

}  // namespace stagehand::host
