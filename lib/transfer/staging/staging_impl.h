// The insides of the staging engine: its queues, its ring and its workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "base/log.h"
#include "base/no_throw.h"
#include "base/status.h"
#include "transfer/source/reader.h"
#include "transfer/staging/deadline_queue.h"
#include "transfer/staging/issue.h"
#include "transfer/staging/progress.h"
#include "transfer/staging/slot_ring.h"
#include "transfer/staging/staging_engine.h"
#include "transfer/staging/staging_size.h"

namespace stagehand::transfer {

using LoadProgress = StagedLoad::Progress;
using StoreProgress = StagedStore::Progress;

// Calls what must not throw. If it does all the same, the worker goes on.
template <class Callback>
void call_back(Callback&& callback) noexcept {
    const Status thrown = no_throw([&] { return callback(), Status(); });
    if (!thrown.ok()) log_line(SH_LOG_ERROR, "staging: a callback threw an exception: %s", thrown.text());
}

// One mutex guards queues and ring. It is never held while a source is read, the device is called, or a
// callback runs, except where the engine's own bookkeeping allocates; so submitters wait for list operations
// at most.
class StagingEngine::Impl {
public:
    Impl(BackendDevice& device, const StagingOptions& options);
    ~Impl();

    bool in_child() const;
    Status submit(StagedLoad& load);
    Status submit(StagedStore& store);
    bool cancel(StagedLoad& load);
    void hurry(StagedLoad& load, uint64_t deadline_ns);

    const StagingSize& size() const { return size_; }
    uint64_t ring_bytes() const { return ring_bytes_.load(std::memory_order_relaxed); }
    uint64_t pinned_bytes() const { return pinned_bytes_.load(std::memory_order_relaxed); }
    uint32_t threads() const { return threads_.load(std::memory_order_relaxed); }

private:
    using Lock = std::unique_lock<std::mutex>;

    // What a worker does next.
    struct Task {
        enum Kind {
            kStop,
            kEndLoad,
            kEndStore,
            kEmpty,
            kRead,
            kStore
        } kind = kStop;
        LoadProgress* load = nullptr;
        StoreProgress* store = nullptr;
        Slot* slot = nullptr;  // may be null for kStore
    };

    // Starting and stopping (staging_engine.cpp).
    Status start();
    Status start_workers();
    void stop_workers();
    void run_worker(uint32_t* reported);
    void revive();

    // Choosing work (staging_worker.cpp). With the lock.
    Task next_task(Lock& lock);
    bool choose(Task* task);
    bool choose_load(Task* task);
    bool choose_store(Task* task);
    bool starving() const;
    bool more_to_do() const;
    bool store_may_have_slot() const;
    bool wants_look() const;
    bool look(Lock& lock);
    void give_up_queues(const Status& status);
    void wake();
    void wake_if_starving();
    void pause(Lock& lock);

    // Loads (staging_load.cpp). With the lock, which is given up while the device is called.
    void read_piece(Lock& lock, const Task& task, Reader& reader, std::vector<ReadRequest>& requests);
    void issue_ready(Lock& lock, LoadProgress& load);
    void fail(LoadProgress& load, const Status& status);
    void drop(Slot& slot);
    void settle(Slot& slot, SlotUse use);
    bool in_turn(const LoadProgress& load, const Slot& slot) const;
    void end_if_done(Lock& lock, LoadProgress& load);
    void end(Lock& lock, LoadProgress& load);
    void end_soon(LoadProgress& load);

    // Stores (staging_store.cpp). With the lock, which is given up while the device is called.
    void issue_store_step(Lock& lock, const Task& task);
    Status issue_some(StoreProgress& store, Slot* slot, Issued* issued);
    Status begin_store(StoreProgress& store);
    void fail(StoreProgress& store, const Status& status);
    void find_staged(StoreProgress& store) const;
    void finish_issue(Lock& lock, StoreProgress& store);
    Status record_read(StoreProgress& store, bool* out_straight_in_flight);
    void empty_slot(Lock& lock, Slot& slot);
    bool store_done(const StoreProgress& store) const;
    void end_if_done(Lock& lock, StoreProgress& store);
    void end(Lock& lock, StoreProgress& store);

    BackendDevice& device_;
    const StagingSize size_;
    std::atomic<uint64_t> ring_bytes_ = 0, pinned_bytes_ = 0;
    std::atomic<uint32_t> threads_;

    std::mutex start_mutex_;  // one thread starts the engine
    std::atomic<bool> started_ = false;
    pid_t process_ = 0;  // that started it: its children have no workers
    std::vector<std::thread> workers_;

    std::mutex mutex_;
    std::condition_variable work_;     // something may have become possible for a worker
    std::condition_variable reports_;  // a worker has begun
    uint32_t idle_ = 0;                // workers that wait for `work_`
    uint64_t sequence_ = 0;
    bool stopping_ = false;
    bool looking_ = false;        // a worker asks the device what has finished
    uint32_t look_pause_us_ = 0;  // before it asks again
    uint64_t wakes_ = 0;          // calls of wake(): tells a worker that looked whether it missed one
    uint32_t parked_ = 0;         // slots that were read and wait for pieces before them
    uint32_t store_slots_ = 0;    // slots that stores have
    Status begin_failure_;
    Status lost_;  // why no slot can be used any more
    SlotRing ring_;
    DeadlineQueue<LoadProgress> loads_;
    DeadlineQueue<StoreProgress> stores_;
    std::vector<LoadProgress*> ending_loads_;  // nothing is left to do but to call `finished`
    std::vector<StoreProgress*> ending_stores_;
    std::vector<Slot*> arrived_;            // bytes of stores that can be taken out
    std::vector<StoreProgress*> straight_;  // whose `arrived` is looked at
    std::vector<StoreProgress*> looked_;    // copy of it during a look

    std::vector<std::unique_ptr<LoadProgress>> all_loads_;
    std::vector<std::unique_ptr<StoreProgress>> all_stores_;
    std::vector<LoadProgress*> idle_loads_;
    std::vector<StoreProgress*> idle_stores_;
};

}  // namespace stagehand::transfer
