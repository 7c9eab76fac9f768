#include "host/record.h"

namespace stagehand::host {

void Record::wait() {
    if (done()) return;
    std::unique_lock lock(mutex_);
    completed_.wait(lock, [this] { return done(); });
}

void Record::complete(uint64_t model_ns) {
    {
        std::lock_guard lock(mutex_);
        model_ns_ = model_ns;
        done_.store(true, std::memory_order_release);
    }
    completed_.notify_all();
}

Record* RecordPool::take() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) {
        // Makes room so that giving back never allocates.
        if (idle_.capacity() <= records_.size()) idle_.reserve(2 * records_.size() + 16);
        Record& record = records_.emplace_back();
        record.pool_ = this;
        idle_.push_back(&record);
    }
    Record* const record = idle_.back();
    idle_.pop_back();
    record->references_.store(1, std::memory_order_relaxed);
    record->done_.store(false, std::memory_order_relaxed);
    return record;
}

void RecordPool::give(Record* record) {
    std::lock_guard lock(mutex_);
    idle_.push_back(record);
}

}  // namespace stagehand::host
